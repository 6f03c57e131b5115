"""Look after the queue: take back the jobs of the dead, close what is done, count, forget what is old. Every worker does it.

Any number may run at once: each skips what another has locked. All of it is in small bites, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.model import JobState
from faultline.store import verbs

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from datetime import datetime

    from faultline.core.model import Reaped, Retention
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.tally import Tally

REAP_SECONDS = 1.0
#: Expired leases are looked for from the first one on, as long as that takes less than one part in so many of the time.
#: Where somebody holds an old snapshot it takes longer: then from a bound on, which must never hide one for longer than so.
_ANYWHERE_SHARE, _ANYWHERE_SECONDS_MAX = 100.0, 20.0
PRUNE_SECONDS = 60.0
#: How often a worker asks for it; the database sees to it that all of them together do not do it too often.
SAMPLE_SECONDS = 5.0
_SAMPLE_SHARE = 50.0
#: Only a restore or somebody's own SQL makes it necessary, and it looks at every open job.
RECONCILE_SECONDS = 3600.0
_BITE_ROWS = 1000
_BITES_MAX = 20


class Upkeep:
    """`settled_in` tells whether this worker itself has been connected long enough to judge others.

    `behind` tells whether leases of its own may have run out, after a stall: then it reaps nothing before they are renewed.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        *,
        settled_in: Callable[[], bool],
        behind: Callable[[], bool],
        retention: Retention,
        chance: random.Random,
        tally: Tally,
    ) -> None:
        self._database = database
        self._tally = tally
        self._settled_in = settled_in
        self._behind = behind
        self._retention = retention
        self._chance = chance
        self._prune_at = self._reconcile_at = self._anywhere_at = 0.0
        #: By the database's clock. No lease that is still held ran out before it, as far as was seen.
        self._lower_bound: datetime | None = None

    async def run(self) -> None:
        while True:
            # Jittered: workers that were started together should not all reap at the same moment.
            await asyncio.sleep(REAP_SECONDS * self._chance.uniform(0.75, 1.25))
            await self.tick()

    async def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            await self.reap()
            if now >= self._prune_at:
                self._prune_at = now + PRUNE_SECONDS
                if not await self.prune():
                    # Once a minute is enough to keep up with what grows slowly, and never with a busy queue.
                    self._prune_at = now
            if now >= self._reconcile_at:
                await self.reconcile()
                self._reconcile_at = now + RECONCILE_SECONDS
        except Exception as error:  # noqa: BLE001 - whatever the server said, it is asked again
            self._tally.database_failed()
            events.emit("upkeep_failed", error=str(error))

    async def sample(self) -> None:
        """Count what waits, now and then. Apart from the rest: where there is much to count, nobody waits for it."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._database.run(verbs.sample())
            except Exception as error:  # noqa: BLE001 - likewise
                self._tally.database_failed()
                events.emit("sample_failed", error=str(error))
            # One that failed for taking too long is not tried again at once: it wrote down nothing of what it took.
            took = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(SAMPLE_SECONDS, _SAMPLE_SHARE * took) * self._chance.uniform(0.75, 1.25))

    async def reap(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        anywhere = asked_at >= self._anywhere_at
        if anywhere:
            self._lower_bound = None
        else:
            self._lower_bound = await self._database.run(verbs.first_expired(self._lower_bound))
        reap = verbs.reap(notice_dead=self._settled_in, withheld=self._behind, lower_bound=self._lower_bound)
        for reaped in await self._database.run(reap):
            self._tell(reaped)
        if anywhere:
            self._anywhere_at = loop.time() + min(_ANYWHERE_SHARE * (loop.time() - asked_at), _ANYWHERE_SECONDS_MAX)

    def _tell(self, reaped: Reaped) -> None:
        self._tally.reaped[reaped.reason] += 1
        events.emit(
            "lease_reaped",
            job_id=reaped.job_id,
            token=reaped.fencing_token,
            state=reaped.state.value,
            reason=reaped.reason,
        )
        if reaped.state is JobState.QUEUED:
            self._tally.of(reaped.queue).recovered += 1
        else:
            # The worker that ran it is gone: if the reaper does not log and count the failure, nobody does.
            self._tally.of(reaped.queue).failed += 1
            events.emit(
                "job_failed",
                job_id=reaped.job_id,
                token=reaped.fencing_token,
                task=reaped.task,
                queue=reaped.queue,
                attempt=reaped.attempt,
                max_attempts=reaped.max_attempts,
                error=reaped.last_error,
                reason=reaped.reason,
            )

    async def reconcile(self) -> None:
        for job_id in await self._database.run(verbs.reconcile()):
            events.emit("job_reconciled", job_id=job_id)

    async def prune(self) -> bool:
        """Forget what is old, in some bites of each kind. Returns whether that was all of it."""
        all_gone = True
        for what in ("ledger", "failed", "journal", "keys"):
            age = getattr(self._retention, what)
            for _ in range(_BITES_MAX):
                gone = await self._database.run(verbs.prune(what, older_than_seconds=age, max_rows=_BITE_ROWS))
                if gone < _BITE_ROWS:
                    break
            else:
                all_gone = False
        await self._database.run(verbs.roll_up())
        return all_gone
