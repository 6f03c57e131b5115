"""One queue in one worker: how much to claim, what runs, what waits. Never more runs at once than was asked for.

Ahead of what runs it holds about as much as will be run in the next moments, measured by how fast jobs have been finishing:
next to nothing for slow jobs, hundreds for fast ones. A lease that waits here is one that another worker could have had.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from faultline.core import events
from faultline.core.errors import OutcomeUnknown
from faultline.core.model import Bound, bounds_after
from faultline.runtime.hold import Hold
from faultline.store import queue

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline.runtime.tally import Tally
    from faultline.runtime.tracing import Tracing
    from faultline.store.database import AsyncDatabase

Asker = TypeVar("Asker")

AHEAD_SECONDS = 0.03
#: Longer than this no claim is planned for: it may have waited for a server that was away.
_CLAIM_SECONDS_MAX = 0.1
CLAIM_MAX = 1000
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.01, 0.5
_RATE_WINDOW = 0.1
#: A claim may have waited for a server that was away: that was no cost, and must not hide work for minutes.
_RESET_SECONDS_MIN, _RESET_SECONDS_MAX, _RESET_SHARE = 1.0, 10.0, 100.0
#: Claims of so few do not wait for others (claim.sql), so that what one took was its own cost.
_FEW = 20
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0


class Lane:
    """`start(hold)` runs a job; `took(holds)` is told of every lease before anything runs.

    `rests(lane, bool)` is told of sleep, and tells whether a hint may be missed: nobody listens, or it is not known yet.
    """

    def __init__(  # noqa: PLR0913 - all but the first two say with whom it works together
        self,
        name: str,
        concurrency: int,
        *,
        database: AsyncDatabase,
        owner: Callable[[], str],
        took: Callable[[list[Hold]], None],
        start: Callable[[Lane, Hold], None],
        rests: Callable[[Lane, bool], bool],
        company: Company[Lane],
        chance: random.Random,
        tally: Tally,
    ) -> None:
        self.name = name
        self._tally = tally
        self._counts = tally.of(name)
        #: Set where jobs are traced.
        self.tracing: Tracing | None = None
        self.concurrency = concurrency
        self.running = 0
        self.waiting: deque[Hold] = deque()
        self._database = database
        self._owner = owner
        self._took = took
        self._start = start
        self._rests = rests
        self._company = company
        self._chance = chance
        self._room = asyncio.Event()
        self._hint = asyncio.Event()
        self._bounds: dict[int, Bound] = {}
        #: Those that came while a claim was on its way: its answer must not undo them.
        self._hints: list[Bound | None] | None = None
        self._reset_at = 0.0
        self._claim_seconds = 0.0
        self._poll_seconds = POLL_SECONDS_MIN
        self._rate = Rate()
        self._ended = 0
        self._turning = False

    async def run(self) -> None:
        """Claim whenever there is room and rest while there is nothing to do. Ends only by being cancelled."""
        pause = _PAUSE_MIN
        while True:
            wanted = self._wanted_now()
            if wanted <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                leases = await self._claim(wanted)
            except Exception as error:  # noqa: BLE001 - whatever the server said, this queue is served on
                self._tally.database_failed()
                events.emit("claim_failed", queue=self.name, error=str(error))
                await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))
                pause = min(pause * 2, _PAUSE_MAX)
                continue
            pause = _PAUSE_MIN
            if len(leases) < wanted:
                await self._rest(found=bool(leases))
            else:
                self._rests(self, False)
                self._poll_seconds = POLL_SECONDS_MIN

    def wanted(self) -> int:
        """How many jobs to claim now.

        A claim of a thousand costs the database two thirds, per job, of one of a hundred: so it is put off until a quarter
        of what is held ahead has been used up. Slow jobs hold nothing ahead and wait for nothing. What is held should last
        until the next claim is answered, which takes long where many workers claim.
        """
        ahead = min(2 * CLAIM_MAX, int(self._rate.per_second * max(AHEAD_SECONDS, self._claim_seconds)))
        free = self.concurrency - self.running + ahead - len(self.waiting)
        return min(free, CLAIM_MAX) if free > ahead // 4 else 0

    def _wanted_now(self) -> int:
        wanted = self.wanted()
        return min(wanted, _FEW) if asyncio.get_running_loop().time() >= self._reset_at else wanted

    def finished(self, lease: Lease) -> None:
        """A job has ended."""
        self.running -= 1
        self._ended += 1
        self.turn_soon()
        if lease.mark_start:
            for lane in self._company.leave(lease):
                lane.turn_soon()

    def follow(self) -> Hold | None:
        """The next to run, in the task of one that has just ended. One whose company matters is left to `fill`."""
        while self.waiting and self.running < self.concurrency and not self.waiting[0].lease.mark_start:
            hold = self.waiting.popleft()
            if hold.lost is None:
                self.running += 1
                return hold
        return None

    def turn_soon(self) -> None:
        """Start the next jobs and see whether to claim: once for all that end in the same turn of the loop."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if self._ended:
            self._rate.count(self._ended, asyncio.get_running_loop().time())
            self._ended = 0
        self.fill()
        if self.wanted() > 0:
            self._room.set()

    def hint(self, lowest: Bound | None, *, wake: bool = True) -> None:
        """There may be work from this place on; from anywhere, without one. What is left to others is not looked for now."""
        self._lower(lowest)
        if self._hints is not None:
            self._hints.append(lowest)
        if wake:
            self._hint.set()

    def _lower(self, lowest: Bound | None) -> None:
        if lowest is None:
            self._bounds.clear()
        else:
            for priority, bound in self._bounds.items():
                if priority >= lowest.priority and (lowest.run_at, lowest.id) < (bound.run_at, bound.id):
                    self._bounds[priority] = replace(lowest, priority=priority)

    def give_back(self) -> list[Hold]:
        """Take out what has not been started."""
        unstarted, self.waiting = list(self.waiting), deque()
        return unstarted

    async def _claim(self, wanted: int) -> list[Lease]:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        reset = asked_at >= self._reset_at
        bounds = [] if reset else list(self._bounds.values())
        owner = self._owner()
        hints: list[Bound | None] = []
        self._hints = hints
        try:
            leases = await self._database.run(queue.claim(self.name, owner=owner, max_jobs=wanted, bounds=bounds))
        except OutcomeUnknown:
            leases = await self._granted_to(owner)
        finally:
            self._hints = None
        took = loop.time() - asked_at
        self._claim_seconds += (min(took, _CLAIM_SECONDS_MAX) - self._claim_seconds) / 4
        if reset:
            # Bounds are a hint that must never hide work for long. A claim without them may be dear, so it is made rarely.
            self._reset_at = loop.time() + min(max(_RESET_SECONDS_MIN, _RESET_SHARE * took), _RESET_SECONDS_MAX)
        self._bounds.update(bounds_after(leases))
        for hint in hints:
            self._lower(hint)
        if leases:
            counts = self._counts
            counts.claimed(leases)
            if self.tracing is not None:
                await self.tracing.fetch(self._database, leases)
            self.put([Hold(lease, asked_at, counts) for lease in leases])
        return leases

    def put(self, holds: list[Hold]) -> None:
        """Take these leases in, the most urgent first, and start what may be started."""
        self._took(holds)
        urgent = bool(self.waiting) and holds[0].lease.priority < self.waiting[-1].lease.priority
        self.waiting.extend(holds)
        if urgent:
            # What was claimed later may be to run sooner.
            self.waiting = deque(sorted(self.waiting, key=lambda hold: hold.lease.priority))
        self.fill()

    async def _granted_to(self, owner: str) -> list[Lease]:
        """The answer to a claim was lost. What it took would wait for its leases to run out: ask for it instead."""
        pause = _PAUSE_MIN
        while True:
            try:
                leases = await self._database.run(queue.granted_to(owner))
            except Exception as error:  # noqa: BLE001
                events.emit("claim_unanswered", queue=self.name, error=str(error))
                await asyncio.sleep(pause * self._chance.uniform(0.5, 1.5))
                pause = min(pause * 2, _PAUSE_MAX)
            else:
                events.emit("claim_answered_late", queue=self.name, jobs=len(leases))
                return leases

    def fill(self) -> None:
        """Start what may be started."""
        passed_over: list[Hold] = []
        while self.waiting and self.running < self.concurrency:
            hold = self.waiting.popleft()
            if hold.lost is not None:
                continue
            if hold.lease.mark_start:
                if not self._company.admits(hold, self.concurrency, self):
                    passed_over.append(hold)
                    continue
                self._company.enter(hold.lease)
            self.running += 1
            self._start(self, hold)
        self.waiting.extendleft(reversed(passed_over))

    async def _rest(self, *, found: bool) -> None:
        """Wait for a hint, and no longer than a poll. Where hints may be missed, polls come quickly after a find."""
        quickly = self._rests(self, True) and found
        self._poll_seconds = POLL_SECONDS_MIN if quickly else min(self._poll_seconds * 4, POLL_SECONDS_MAX)
        try:
            async with asyncio.timeout(self._poll_seconds * self._chance.uniform(0.75, 1.25)):
                await self._hint.wait()
        except TimeoutError:
            pass
        self._hint.clear()


class Company(Generic[Asker]):
    """Who may run beside whom in this process, so that a job which kills its workers is found out and others are spared.

    Only jobs whose start is marked are asked about. One that was reaped once runs beside a quarter of the usual number of
    such jobs, twice a sixteenth; after that it runs while no other marked job does. If the worker dies then, it is known of
    which job, and only that one's attempt counts.
    """

    ALONE_AFTER = 3

    def __init__(self) -> None:
        self._marked = 0
        self._suspects = 0
        self._alone = False
        #: Who waits to be alone. One whose lease is lost waits no longer.
        self._alone_wanted: Hold | None = None
        self._turned_away: set[Asker] = set()

    def admits(self, hold: Hold, concurrency: int, asker: Asker) -> bool:
        admitted = self._admits(hold, concurrency)
        if not admitted:
            self._turned_away.add(asker)
        return admitted

    def _admits(self, hold: Hold, concurrency: int) -> bool:
        reaps = hold.lease.reaps
        if reaps >= self.ALONE_AFTER:
            # Announced, so that the marked ones which run now are the last before it.
            self._alone_wanted = hold if self._marked > 0 else None
            return self._alone_wanted is None
        if self._alone or (self._alone_wanted is not None and self._alone_wanted.lost is None):
            return False
        return reaps == 0 or self._suspects < max(1, concurrency >> 2 * reaps)

    def enter(self, lease: Lease) -> None:
        self._marked += 1
        self._suspects += lease.reaps > 0
        if lease.reaps >= self.ALONE_AFTER:
            self._alone, self._alone_wanted = True, None

    def leave(self, lease: Lease) -> set[Asker]:
        """Answers with those who were turned away before and may ask again."""
        self._marked -= 1
        self._suspects -= lease.reaps > 0
        if lease.reaps >= self.ALONE_AFTER:
            self._alone = False
        turned_away, self._turned_away = self._turned_away, set()
        return turned_away


class Rate:
    """How many jobs a second have been finishing, lately."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._since = 0.0
        self._finished = 0

    def count(self, finished: int, now: float) -> None:
        self._finished += finished
        passed = now - self._since
        if passed >= _RATE_WINDOW:
            # After a long silence the old rate says nothing.
            weight = min(1.0, passed / (2 * _RATE_WINDOW))
            self.per_second += weight * (self._finished / passed - self.per_second)
            self._since, self._finished = now, 0
