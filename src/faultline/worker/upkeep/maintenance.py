"""Upkeep, in every worker: reap expired leases, cancel expired jobs, close finished jobs, count, prune.

Any number may run at once: each skips what another has locked, and all work in small batches, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.model import JobState
from faultline.store import verbs
from faultline.store.translation import is_about_the_moment
from faultline.store.verbs import limit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from faultline.core.model import Reaped, Retention
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally
    from faultline.worker.lease.permits import Permits
    from faultline.worker.write.observers import Observers

REAP_SECONDS = 1.0
#: A reap looks at all leases while that takes less than one part in so many of the time. An old snapshot makes it slower:
#: then it looks from a bound on, which must not hide an expired lease for longer than the maximum.
_ANYWHERE_SHARE, _ANYWHERE_SECONDS_MAX = 100.0, 20.0
PRUNE_SECONDS = 60.0
#: How often a worker asks for a sample; the database limits all workers together.
SAMPLE_SECONDS = 5.0
_SAMPLE_SHARE = 50.0
#: Only a restore or foreign SQL makes it necessary, and it reads every open job.
RECONCILE_SECONDS = 3600.0
_BITE_ROWS = 1000
_BITES_MAX = 20


class Upkeep:
    """`may_judge`: whether this worker has been connected long enough to call others dead. `behind`: whether its own leases
    may have expired in a stall, or those of all workers because the database's clock was set forward; then it reaps nothing
    before they are renewed. `latest`: what that clock can say at most. `on_failed`: called when a reap ended a job.
    """

    #: None: nobody observes how jobs end.
    observers: Observers | None = None

    def __init__(  # noqa: PLR0913 - all that it asks the other parts of the worker
        self,
        database: AsyncDatabase,
        *,
        may_judge: Callable[[], bool],
        behind: Callable[[], bool],
        latest: Callable[[], datetime | None] = lambda: None,
        retention: Retention,
        chance: random.Random,
        tally: Tally,
        on_failed: Callable[[], None] = lambda: None,
        queues: Sequence[str] = (),
        permits: Permits | None = None,
    ) -> None:
        self._database = database
        self._tally = tally
        self._on_failed = on_failed
        self._queues = queues
        self._permits = permits
        self._may_judge = may_judge
        self._behind = behind
        self._latest = latest
        self._retention = retention
        self._chance = chance
        self._prune_at = self._reconcile_at = self._anywhere_at = 0.0
        #: No lease that is still held expired before it, as far as this worker saw. By the database's clock.
        self._lower_bound: datetime | None = None

    async def run(self) -> None:
        while True:
            # Jittered: workers that started together should not reap at the same moment.
            await asyncio.sleep(REAP_SECONDS * self._chance.uniform(0.75, 1.25))
            await self.tick()

    async def tick(self) -> None:
        """One part that fails keeps no other from being done, unless the database is away."""
        for part in (self.reap, self.maintain_limits, self.expire, self._prune_now_and_then, self._reconcile_now_and_then):
            try:
                await part()
            except Exception as error:  # noqa: BLE001 - any error: try again
                self._tally.database_failed()
                events.emit("upkeep_failed", error=str(error))
                if is_about_the_moment(error):
                    return

    async def _prune_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_SECONDS
            if not await self.prune():
                # Once a minute is too rare for a busy queue.
                self._prune_at = now

    async def _reconcile_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._reconcile_at:
            # First: one that takes too long must not be repeated at every tick.
            self._reconcile_at = now + RECONCILE_SECONDS
            await self.reconcile()

    async def sample(self) -> None:
        """Count waiting jobs now and then, separately: with many jobs it takes long."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._database.run(verbs.sample())
            except Exception as error:  # noqa: BLE001 - likewise
                self._tally.database_failed()
                events.emit("sample_failed", error=str(error))
            # One that failed by taking too long is not repeated at once: nothing was stored.
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
        reap = verbs.reap(
            notice_dead=self._may_judge, withheld=self._behind, lower_bound=self._lower_bound, latest=self._latest
        )
        for reaped in await self._database.run(reap):
            self._report(reaped)
        if anywhere:
            self._anywhere_at = loop.time() + min(_ANYWHERE_SHARE * (loop.time() - asked_at), _ANYWHERE_SECONDS_MAX)

    async def maintain_limits(self) -> None:
        """Hear what happened in idle queues with limits, and which of its own have some by now."""
        folded = await self._database.run(limit.maintain_limits(self._queues))
        if self._permits is not None:
            self._permits.limit(folded.limited)

    def _report(self, reaped: Reaped) -> None:
        self._tally.reaped[reaped.reason] += 1
        if self._permits is not None:
            self._permits.freed(reaped.queue)
        events.emit(
            "lease_reaped",
            job_id=reaped.job_id,
            token=reaped.fencing_token,
            state=reaped.state.value,
            reason=reaped.reason,
        )
        if reaped.state is JobState.QUEUED:
            self._tally.of(reaped.queue).requeued += 1
        else:
            # The worker that ran it is gone, so the reaper logs and counts the failure.
            self._tally.of(reaped.queue).failed += 1
            self._on_failed()
            if self.observers is not None:
                self.observers.reaped(reaped)
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

    async def expire(self) -> None:
        """Cancel what has expired, in batches: claims pass over such jobs, but must read them."""
        for _ in range(_BITES_MAX):
            expired = await self._database.run(verbs.expire(max_jobs=_BITE_ROWS))
            for (queue, task), jobs in Counter((one.queue, one.task) for one in expired).items():
                self._tally.of(queue).expired += jobs
                events.emit("jobs_expired", queue=queue, task=task, jobs=jobs)
            if len(expired) < _BITE_ROWS:
                return

    async def reconcile(self) -> None:
        for job_id in await self._database.run(verbs.reconcile()):
            events.emit("job_reconciled", job_id=job_id)

    async def prune(self) -> bool:
        """Delete what is older than its retention, in batches. Returns whether that was all."""
        all_gone = True
        for what in ("ledger", "failed", "journal", "ticks", "keys", "unique_keys", "flows"):
            # Keys of unique jobs mean nothing once these have ended: no setting says how long they are kept.
            age = getattr(self._retention, "journal" if what == "ticks" else what, None)
            for _ in range(_BITES_MAX):
                gone = await self._database.run(verbs.prune(what, older_than_seconds=age, max_rows=_BITE_ROWS))
                if gone < _BITE_ROWS:
                    break
            else:
                all_gone = False
        await self._database.run(verbs.roll_up())
        return all_gone
