"""One queue in one worker: how many jobs to claim, which run, which wait. Never more than the concurrency run at once.

Beyond those that run, it holds about as many as will start in the next moments, by how fast jobs have been finishing: nearly
none for slow jobs, hundreds for fast ones. Another worker could run a job that waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.errors import OutcomeUnknown
from faultline.core.model import Bound, bounds_after
from faultline.core.pause import Pause
from faultline.store import verbs
from faultline.worker.claim.claim_durability import Syncing, claimed_by, gather, synced
from faultline.worker.claim.hint_budget import HintBudget, RecentJobs
from faultline.worker.claim.limited_backoff import LimitedBackoff
from faultline.worker.claim.notifier import Hint
from faultline.worker.claim.poll import reset_seconds
from faultline.worker.claim.prefetch import Prefetch
from faultline.worker.lease.held_lease import HeldLease

if TYPE_CHECKING:
    import random

    from faultline.core.model import Lease
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally
    from faultline.worker.claim.poll import Poll
    from faultline.worker.claim.wakeups import Hints
    from faultline.worker.lease.lease_table import Leases
    from faultline.worker.run.crash_quarantine import CrashQuarantine
    from faultline.worker.run.executor import Executor
    from faultline.worker.run.tracing import Tracer
    from faultline.worker.write.release_unstarted import Unstarted

#: A claim that took longer may have waited for a server that was away, so it is not planned for.
_CLAIM_SECONDS_MAX = 0.1
CLAIM_MAX = 1000
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.01, 0.5
#: A queue that is polled together with others is polled by itself only this often.
_WATCHED_SECONDS = 60.0
#: Claims of so few do not wait for other claims (claim.sql), so their time is their own cost.
_FEW = 20
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0
#: How long a job waits that may not run beside the running ones, and how long it is then left to other workers.
_PASSED_OVER_SECONDS, _LEFT_TO_OTHERS_SECONDS = 1.0, 0.5
#: How many jobs are first started in one turn of the loop.
_STARTS_MIN = 8
#: Any login can send any number of hints. More than so many that wait for something become one.
_HINTS_MAX = 1000
#: No lease is shorter than a tenth of a second, so nothing can be late before this.
_LATE_SECONDS_MIN = 0.06


class Feed:
    """Claims for the executor, which takes the next hold (`follow`) and reports when one has ended (`finished`)."""

    #: The owner of a claim that was sent, until its leases have arrived.
    _asked_as: str | None = None
    #: How many hints this worker stands by for.
    _stands_by = 0
    _starts_max = _STARTS_MIN
    #: What it holds in a queue with limits, until its permits are given back; None: the queue has none.
    within: set[HeldLease] | None = None
    computing = queued = 0  # see Source
    #: Set once the limits of its queue are declared; None: they need not be.
    declared: asyncio.Event | None = None

    def __init__(  # noqa: PLR0913 - all but the first two are the parts that it works with
        self,
        name: str,
        concurrency: int,
        *,
        database: AsyncDatabase,
        leases: Leases,
        executor: Executor,
        unstarted: Unstarted,
        hints: Hints,
        poll: Poll | None,
        company: CrashQuarantine[Feed],
        chance: random.Random,
        tally: Tally,
    ) -> None:
        self.name = name
        self._tally = tally
        self._counts = tally.of(name)
        #: None: jobs are not traced.
        self.tracing: Tracer | None = None
        self.concurrency = concurrency
        self.running = 0
        self.waiting: deque[HeldLease] = deque()
        self._database = database
        self._leases = leases
        self._executor = executor
        self._unstarted = unstarted
        self._hints = hints
        self._poll = poll
        self._company = company
        self._chance = chance
        self._room, self._hint = asyncio.Event(), asyncio.Event()
        self._bounds: dict[int, Bound] = {}
        #: Hints that came while a claim was running: its answer must not undo them, and may be what they are about.
        self._hinted: list[Hint] | None = None
        self._granted, self._hint_budget = RecentJobs(), HintBudget()
        self._reset_at = 0.0
        self._claim_seconds = 0.0
        self._syncing = Syncing()
        self._poll_seconds = POLL_SECONDS_MIN
        self._pace = Prefetch()
        self._turn_of_queue = LimitedBackoff(name, leases.worker_id, database, chance)
        self._was_freed = self._turning = False
        self._ended = 0
        #: Jobs that may not run beside the running ones, and since when.
        self._passed_over: dict[HeldLease, float] = {}
        self._will_give_up, self._claims_at = False, 0.0
        self._asked_at = 0.0
        self._was_hinted = False

    async def run(self) -> None:
        """Claim while there is room, rest while there is nothing to do. Ends only when cancelled."""
        await self.release_unanswered_claim()  # of a cancelled run
        if self.declared is not None:
            await self.declared.wait()
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        while True:
            await self._leave_to_others()
            wanted = self._wanted_now()
            if wanted <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            if self.within is not None:
                await self._turn_of_queue.offer()
                await gather(self._claim_seconds, wanted, self.concurrency)
                wanted = max(0, self._wanted_now())
            try:
                leases = await self._claim(wanted)
            except Exception as error:  # noqa: BLE001 - no error may stop the queue
                self._tally.database_failed()
                events.emit("claim_failed", queue=self.name, error=str(error))
                await asyncio.sleep(pause.next() * self._chance.uniform(0.5, 1.5))
                continue
            pause.reset()
            was_hinted, self._was_hinted = self._was_hinted, False
            if was_hinted:
                self._hint_budget.spend(asyncio.get_running_loop().time())
            self._hint_budget.earn(len(leases))
            if leases and self.within is not None:
                self._turn_of_queue.granted()
            if len(leases) < wanted:
                await (self._rest if self.within is None else self._rest_within)(found=bool(leases))
            else:
                self._hints.works(self.name)
                self._poll_seconds = POLL_SECONDS_MIN

    def wanted(self) -> int:
        """How many jobs to claim now.

        Per job, a claim of a thousand costs the database two thirds of a claim of a hundred. So the feed claims again only
        when a quarter of its prefetched jobs is used up; slow jobs have none and never wait. The prefetched jobs should last
        until the next claim is answered, which takes long where many workers claim. Jobs that wait for a process count.
        """
        if self.within is not None:
            # A job that has ended holds its permit until that is written: a claim before would be in vain.
            return min(self.concurrency - max(self.running + len(self.waiting), len(self.within)), CLAIM_MAX)
        computes = 0 < self.computing == self.running
        ahead = min(2 * CLAIM_MAX, self._pace.ahead(self._claim_seconds, computes=computes))
        free = self.concurrency - self.running + ahead - len(self.waiting)
        prefetched = self.queued + len(self.waiting)
        if computes and free <= ahead and self._pace.lasts(prefetched, self._claim_seconds):
            return 0
        return min(free, CLAIM_MAX) if free > ahead // 4 else 0

    def _wanted_now(self) -> int:
        wanted = self.wanted()
        if self.within is not None:
            return wanted
        return min(wanted, _FEW) if asyncio.get_running_loop().time() >= self._reset_at else wanted

    def finished(self, lease: Lease) -> None:
        self.running -= 1
        self._ended += 1
        self.turn_soon()
        if lease.needs_start_record:
            for feed in self._company.leave(lease):
                feed.turn_soon()

    def follow(self) -> HeldLease | None:
        """The next job to run in the asyncio task of one that has ended. Jobs with a marked start are left to `fill`."""
        while self.waiting and self.running < self.concurrency and not self.waiting[0].lease.needs_start_record:
            hold = self.waiting.popleft()
            if hold.lost is None:
                self.running += 1
                return hold
            self._forget(hold)
        return None

    def _forget(self, hold: HeldLease) -> None:
        """It was lost before it started: it has no ending that would give its permit back."""
        if self.within is not None:
            self.within.discard(hold)

    def turn_soon(self) -> None:
        """Start the next jobs and maybe claim: once for all jobs that end in the same turn of the loop."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._starts_max = _STARTS_MIN if self._ended else min(2 * self._starts_max, self.concurrency)
        if self._ended:
            self._pace.count(self._ended, asyncio.get_running_loop().time())
            self._ended = 0
        self.fill()
        if self.wanted() > 0:
            self._room.set()

    def hint(self, hint: Hint) -> None:
        """There may be work. A hint of jobs that this feed has just been granted leads to nothing."""
        if self._hinted is not None:
            self._hinted.append(hint)
            if len(self._hinted) > _HINTS_MAX:
                self._hinted = [Hint(self.name)]
        elif not self._granted.include(hint.job_ids):
            self._lower(hint.lowest)
            if hint.wake_after is None:
                return
            if hint.wake_after == 0.0 or self._stands_by >= _HINTS_MAX:
                self._hint.set()
            else:
                self._stands_by += 1
                loop = asyncio.get_running_loop()
                loop.call_later(hint.wake_after, self._stand_in, loop.time())

    def _stand_in(self, hinted_at: float) -> None:
        """Another worker should have looked. A claim of this one since then would have found what it left."""
        self._stands_by -= 1
        if self._asked_at < hinted_at:
            self._hint.set()

    def freed(self) -> None:
        """A permit of its queue is free again."""
        self._was_freed = True
        self._hint.set()
        self._room.set()

    def bounds(self) -> list[Bound]:
        """Below these positions the feed has seen no work. In a queue with limits, groups take turns: there are none."""
        return list(self._bounds.values()) if self.within is None else []

    def wake(self) -> None:
        """There is work at or above the bounds."""
        self._hint.set()

    def _lower(self, lowest: Bound | None) -> None:
        if lowest is None:
            self._bounds.clear()
        else:
            for priority, bound in self._bounds.items():
                if priority >= lowest.priority and (lowest.run_at, lowest.id) < (bound.run_at, bound.id):
                    self._bounds[priority] = replace(lowest, priority=priority)

    def take_waiting(self) -> list[HeldLease]:
        """Remove and return the jobs that were not started."""
        unstarted, self.waiting = list(self.waiting), deque()
        return unstarted

    async def _claim(self, wanted: int) -> list[Lease]:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        reset = asked_at >= self._reset_at
        bounds = [] if reset else self.bounds()
        owner = self._leases.owner_of_claim(self.name)
        self._hinted, self._asked_at = [], asked_at
        syncs = self.within is not None and self._syncing.needed
        claim = verbs.claim(self.name, owner=owner, max_jobs=wanted, bounds=bounds, syncs=syncs)
        claim = replace(claim, params_now=partial(self._sending, owner, claim.params))
        try:
            leases = await self._database.run(claim)
        except OutcomeUnknown:
            leases = await claimed_by(self._database, self.name, owner, self._chance)
        except Exception:
            self._asked_as = None
            self._follow_hints()
            raise
        answered_at = loop.time()
        if syncs:
            leases = await synced(self._database, self.name, owner, self._chance, leases)
        took = loop.time() - asked_at
        self._claim_seconds += (min(took, _CLAIM_SECONDS_MAX) - self._claim_seconds) / 4
        if self.within is not None:
            sync = loop.time() - answered_at if syncs and leases else None
            self._syncing.answered(min(answered_at - asked_at, _CLAIM_SECONDS_MAX), sync)
        if reset:
            self._reset_at = loop.time() + reset_seconds(took)
        if self.within is None:
            self._bounds.update(bounds_after(leases))
        else:
            self._bounds.clear()
        if len(leases) <= _FEW:
            self._granted.add([lease.job_id for lease in leases])
        self._follow_hints()
        if leases:
            counts = self._counts
            counts.claimed(leases)
            if self.tracing is not None:
                await self.tracing.fetch(self._database, leases)
            self._take([HeldLease(lease, asked_at, counts) for lease in leases])
        self._asked_as = None
        return leases

    def _follow_hints(self) -> None:
        """Those that came while the claim was on its way."""
        hints, self._hinted = self._hinted or [], None
        for hint in hints:
            self.hint(hint)

    def _sending(self, owner: str, params: tuple[Any, ...]) -> tuple[Any, ...]:
        self._asked_as = owner
        return params

    async def release_unanswered_claim(self) -> None:
        """Release what a cancelled claim got. Otherwise these jobs would wait until their leases expire."""
        owner, self._asked_as = self._asked_as, None
        if owner is not None:
            asked_at = asyncio.get_running_loop().time()
            leases = await claimed_by(self._database, self.name, owner, self._chance)
            if leases:
                self._counts.claimed(leases)
                holds = [HeldLease(lease, asked_at, self._counts) for lease in leases]
                self._leases.took(self.name, holds)
                self._unstarted.release(holds)

    def _take(self, holds: list[HeldLease]) -> None:
        """A claim may have waited for a connection longer than a lease lasts. Its jobs would be cancelled right after their
        start, which could use up a last attempt. Release them instead.
        """
        now = asyncio.get_running_loop().time()
        late = []
        if now >= holds[0].renewed_at + _LATE_SECONDS_MIN:
            late = [hold for hold in holds if now >= hold.renewed_at + hold.lease.lease_seconds * 2 / 3]
        if late:
            self._leases.took(self.name, late)
            self._unstarted.release(late)
        fresh = [hold for hold in holds if hold not in late] if late else holds
        if fresh:
            self.put(fresh)

    def put(self, holds: list[HeldLease]) -> None:
        """Add these leases, the most urgent first, and start what may be started."""
        self._leases.took(self.name, holds)
        urgent = bool(self.waiting) and holds[0].lease.priority < self.waiting[-1].lease.priority
        self.waiting.extend(holds)
        if urgent:
            # A later claim may bring more urgent jobs.
            self.waiting = deque(sorted(self.waiting, key=lambda hold: hold.lease.priority))
        self.fill()

    def fill(self) -> None:
        """Start a few jobs, and more at the next turn of the loop.

        Making an asyncio task takes longer than running a job that does nothing: a few tasks run jobs that never wait, one
        after the other. While no job ends, all of them wait, and each turn starts twice as many as the last.
        """
        passed_over: list[HeldLease] = []
        started = 0
        while self.waiting and self.running < self.concurrency:
            if started >= self._starts_max:
                self.turn_soon()
                break
            hold = self.waiting.popleft()
            if hold.lost is not None:
                self._forget(hold)
                continue
            if hold.lease.needs_start_record:
                if not self._company.admits(hold, self.concurrency, self):
                    passed_over.append(hold)
                    continue
                self._company.enter(hold.lease)
            self.running += 1
            started += 1
            self._executor.start(hold, self)
        self.waiting.extendleft(reversed(passed_over))
        if passed_over or self._passed_over:
            self._note_passed_over(passed_over)

    def _note_passed_over(self, holds: list[HeldLease]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._passed_over = {hold: self._passed_over.get(hold, now) for hold in holds}
        if holds and not self._will_give_up:
            self._will_give_up = True
            loop.call_later(_PASSED_OVER_SECONDS, self._give_up_passed_over)

    def _give_up_passed_over(self) -> None:
        """Leave jobs that cannot run here now to other workers, which may be idle; longer each time, so that the next claim
        finds jobs that can run. The job that waits to run alone stays: no marked job starts before it, so its turn comes.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        passed_over = {hold: at for hold, at in self._passed_over.items() if hold.lost is None}
        # A loop's clock is not exact.
        over = [hold for hold, at in passed_over.items() if now > at + 0.9 * _PASSED_OVER_SECONDS]
        # A dict keeps their order: a set would have another order in every run.
        given_up = dict.fromkeys(hold for hold in over if not self._company.awaits(hold))
        self._passed_over = {hold: at for hold, at in passed_over.items() if hold not in given_up}
        if given_up:
            self.waiting = deque(hold for hold in self.waiting if hold not in given_up)
            self._claims_at = now + _LEFT_TO_OTHERS_SECONDS
            for hold in given_up:
                self._unstarted.release([hold], self._company.put_off(hold.lease.job_id, now))
            self.turn_soon()
        self._will_give_up = bool(self._passed_over)
        if self._will_give_up:
            loop.call_later(_PASSED_OVER_SECONDS, self._give_up_passed_over)

    async def _leave_to_others(self) -> None:
        """After releasing jobs, let other workers claim them first."""
        pause = self._claims_at - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _rest(self, *, found: bool) -> None:
        """Wait for a hint, at most until the next poll. Where hints may be missed, poll soon after a find."""
        quickly = self._hints.rests(self.name) and found
        self._poll_seconds = POLL_SECONDS_MIN if quickly else min(self._poll_seconds * 4, POLL_SECONDS_MAX)
        seconds = self._poll_seconds
        watching: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._poll is not None and not found:
            seconds, watching = _WATCHED_SECONDS, self._poll.watching(self)
        with contextlib.suppress(TimeoutError), watching:
            async with asyncio.timeout(seconds * self._chance.uniform(0.75, 1.25)):
                await self._until_hinted()
        self._hint.clear()

    async def _rest_within(self, *, found: bool) -> None:
        """The same in a queue with limits: until a permit is free, or until the next turn."""
        self._hints.rests(self.name)
        if not self._was_freed:
            # A hint that came while the claim ran is most often about what the claim got. To ask is cheaper than to claim.
            heard = self._hint.is_set()
            self._hint.clear()
            seconds = await self._turn_of_queue.rest_seconds(self._claim_seconds, found=found, anew=heard)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._until_hinted()
        self._was_freed = False
        self._hint.clear()

    async def _until_hinted(self) -> None:
        """Until a permit is free, or until a hint comes and the budget allows to follow it."""
        loop = asyncio.get_running_loop()
        while True:
            await self._hint.wait()
            if self._was_freed:
                return
            seconds = self._hint_budget.wait_seconds(loop.time())
            if seconds <= 0.0:
                self._was_hinted = True
                return
            self._hint.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._hint.wait()
            self._hint.set()
