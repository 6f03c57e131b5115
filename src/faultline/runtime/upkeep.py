"""Look after the queue: take back the jobs of the dead, close what is done, forget what is old. Every worker does it.

Any number may run at once: each skips what another has locked. All of it is in small bites, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.store import queue

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from faultline.store.database import AsyncDatabase

REAP_SECONDS = 1.0
PRUNE_SECONDS = 60.0
#: Only a restore or somebody's own SQL makes it necessary, and it looks at every open job.
RECONCILE_SECONDS = 3600.0
_BITE_ROWS = 1000
_BITES_MAX = 20
_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long what has ended is remembered, in seconds."""

    ledger: float = 7 * _DAY
    failed: float = 30 * _DAY
    journal: float = 30 * _DAY
    keys: float = 30 * _DAY


class Upkeep:
    """`settled_in` tells whether this worker itself has been connected long enough to judge others."""

    def __init__(
        self, database: AsyncDatabase, *, settled_in: Callable[[], bool], retention: Retention, chance: random.Random
    ) -> None:
        self._database = database
        self._settled_in = settled_in
        self._retention = retention
        self._chance = chance
        self._pruned_at = self._reconciled_at = -RECONCILE_SECONDS

    async def run(self) -> None:
        while True:
            # Jittered: workers that were started together should not all reap at the same moment.
            await asyncio.sleep(REAP_SECONDS * self._chance.uniform(0.75, 1.25))
            await self.tick()

    async def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            await self.reap()
            if now >= self._pruned_at + PRUNE_SECONDS:
                self._pruned_at = now
                await self.prune()
            if now >= self._reconciled_at + RECONCILE_SECONDS:
                self._reconciled_at = now
                await self.reconcile()
        except Exception as error:  # noqa: BLE001 - whatever the server said, it is asked again
            events.emit("upkeep_failed", error=str(error))

    async def reap(self) -> None:
        for reaped in await self._database.run(queue.reap(notice_dead=self._settled_in())):
            events.emit(
                "lease_reaped",
                job_id=reaped.job_id,
                token=reaped.fencing_token,
                state=reaped.state.value,
                reason=reaped.reason,
            )

    async def reconcile(self) -> None:
        for job_id in await self._database.run(queue.reconcile()):
            events.emit("job_reconciled", job_id=job_id)

    async def prune(self) -> None:
        for what in ("ledger", "failed", "journal", "keys"):
            age = getattr(self._retention, what)
            for _ in range(_BITES_MAX):
                gone = await self._database.run(queue.prune(what, older_than_seconds=age, max_rows=_BITE_ROWS))
                if gone < _BITE_ROWS:
                    break
