"""Wake the jobs of flows whose waits are over, and cancel the children of jobs that ended badly.

A job that ends, and a signal, only leave a note (a nudge) for those who wait. Every worker acts on all notes: at once after
its own endings and after a hint, and about once a second in any case, so that nothing depends on the one who left the note.
Any number may do so at the same time: each skips what another has locked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.pause import Pause
from faultline.store import verbs
from faultline.worker.claim.hint_budget import HintBudget

if TYPE_CHECKING:
    import random

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally

RESOLVE_SECONDS = 1.0
#: After a look, what ends within so short a time is looked at together: it often wakes the same job.
_TOGETHER_SECONDS = 0.01
#: How soon to look again where rows were locked.
_HELD_SECONDS = 0.05
_NUDGES_MAX, _BITE_JOBS = 100, 500
#: How many statements in one turn: others must get the connection, too.
_ROUNDS_MAX = 20
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0


class Resolver:
    """One per worker. `ask` after an own ending, `hint` after a notification."""

    def __init__(self, database: AsyncDatabase, chance: random.Random, tally: Tally) -> None:
        self._database = database
        self._chance = chance
        self._tally = tally
        self._asked = asyncio.Event()
        self._hinted = False
        self._hint_budget = HintBudget()
        #: What the last look saw of other transactions: the next one finds nudges that were committed late.
        self._cursor: str | None = None
        self._pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        self._looked_at = 0.0
        #: Something was left that can be done soon.
        self._left_over = False

    def ask(self) -> None:
        """A job of a flow has ended here."""
        self._asked.set()

    def hint(self) -> None:
        """A notification says that a job may be able to go on."""
        if not self._hinted:
            self._hinted = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._hint_budget.wait_seconds(loop.time()), self._asked.set)

    async def run(self) -> None:
        """Ends only when cancelled."""
        while True:
            await self._rest()
            await self.tick()

    async def _rest(self) -> None:
        seconds = _HELD_SECONDS if self._left_over else RESOLVE_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * self._chance.uniform(0.75, 1.25)):
                await self._asked.wait()
        since_last = asyncio.get_running_loop().time() - self._looked_at
        if since_last < _TOGETHER_SECONDS:
            await asyncio.sleep(_TOGETHER_SECONDS - since_last)
        self._asked.clear()

    async def tick(self) -> None:
        """Look at the nudges that are there, then cancel some children."""
        hinted, self._hinted = self._hinted, False
        try:
            woken = await self._resolve()
            swept = await self._sweep()
        except Exception as error:  # noqa: BLE001 - any error: try again
            self._tally.database_failed()
            events.emit("resolve_failed", error=str(error))
            # Some nudges may have been seen without an answer: look at all of them again.
            self._cursor, self._left_over = None, False
            await asyncio.sleep(self._pause.next() * self._chance.uniform(0.75, 1.25))
            return
        self._pause.reset()
        self._looked_at = asyncio.get_running_loop().time()
        if hinted and not woken and not swept:
            self._hint_budget.spend(self._looked_at)

    async def _resolve(self) -> int:
        """Returns how many jobs can go on."""
        woken = 0
        self._left_over = False
        for _ in range(_ROUNDS_MAX):
            resolved = await self._database.run(verbs.resolve(_NUDGES_MAX, self._cursor))
            self._cursor = resolved.cursor
            woken += resolved.woken
            if not resolved.left_over:
                break
            # More than fit into one statement, or rows that are locked: those are not looked at again at once.
            self._left_over = True
        return woken

    async def _sweep(self) -> bool:
        """Returns whether there was anything to cancel."""
        left = 0
        for turn in range(_ROUNDS_MAX):
            left = await self._database.run(verbs.sweep(_BITE_JOBS))
            if not left:
                return turn > 0
        self._left_over = True
        return True
