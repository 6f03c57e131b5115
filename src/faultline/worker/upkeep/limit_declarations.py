"""Declare the limits of queues, and budgets, when a worker starts, as its code has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.pause import Pause
from faultline.store.translation import is_about_data
from faultline.store.verbs import limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.app.registry import Registry
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.statement import Statement
    from faultline.worker.base.counters import Tally
    from faultline.worker.claim.feed import Feed
    from faultline.worker.lease.permits import Permits

_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0


class Declaring:
    """Once: a build that starts later has the last word, and what people have set stays.

    Until a queue is declared, nothing is claimed from it: it might have no limits in the database yet, and one that is
    promised never to be exceeded must not be, not even for the time that the database takes to come back. Each is declared
    by itself: one that is refused holds up no other queue.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        worker_id: str,
        app: Registry,
        feeds: Mapping[str, Feed],
        permits: Permits,
        tally: Tally,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        #: Those that are left to declare.
        self._queues = app.queue_declarations()
        self._budgets = app.budget_declarations()
        #: The names of all budgets.
        self.budgets = list(self._budgets)
        #: And of all queues.
        self.queues = list(self._queues)
        self._declared_budgets = dict(self._budgets)
        self._feeds = feeds
        self._permits = permits
        self._tally = tally
        # Any job may take from a budget, and one that is not there yet would fail it.
        self._gates = {name: asyncio.Event() for name in feeds if self._budgets or name in self._queues}
        for name, gate in self._gates.items():
            feeds[name].declared = gate

    @property
    def _is_done(self) -> bool:
        return not self._queues and not self._budgets

    async def begin(self) -> None:
        """Before the worker says that it has started."""
        if not self._is_done:
            await self._declare()

    async def run(self) -> None:
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        while not self._is_done:
            await asyncio.sleep(pause.next())
            await self._declare()

    async def again(self) -> None:
        """Declare the budgets once more, now that the database knows that this worker has them: somebody may have removed
        one before, since no worker had it. Raises what the database raises.
        """
        for statement in self._declared_budgets.values():
            await self._database.run(statement)

    async def _declare(self) -> None:
        try:
            for name, error in await self._declare_each(self._budgets):
                events.emit("budget_not_declared", worker=self._worker_id, budget=name, error=str(error))
            for name, error in await self._declare_each(self._queues):
                events.emit("queue_not_declared", worker=self._worker_id, queue=name, error=str(error))
            found = await self._database.run(limit.limited(list(self._feeds)))
            self._permits.limit(found)
        except Exception as error:  # noqa: BLE001 - the worker has other queues, and tries again
            self._tally.database_failed()
            events.emit("queue_not_declared", worker=self._worker_id, error=str(error))
            return
        for name, gate in self._gates.items():
            if not self._budgets and name not in self._queues:
                gate.set()

    async def _declare_each(self, left: dict[str, Statement[bool]]) -> list[tuple[str, Exception]]:
        """Returns those that are refused. They are tried again: an operator may have set what they do not fit."""
        refused: list[tuple[str, Exception]] = []
        for name, statement in list(left.items()):
            try:
                await self._database.run(statement)
            except Exception as error:
                if not is_about_data(error):
                    raise
                refused.append((name, error))
            else:
                del left[name]
        return refused
