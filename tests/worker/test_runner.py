"""Many attempts in one asyncio task, one after the other: none of them may notice the ones before."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from faultline import Faultline
from faultline.core.model import Lease
from faultline.worker.base.counters import Tally
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.lease.stop import Stop
from faultline.worker.run.executor import Executor
from faultline.worker.write.endings import Completed, Ending

if TYPE_CHECKING:
    from collections.abc import Iterator

USER: contextvars.ContextVar[Any] = contextvars.ContextVar("user", default=None)


@pytest.fixture
def app() -> Faultline:
    """These tasks never reach the database."""
    return Faultline("postgresql://127.0.0.1:1/nothing")


def held(task: str) -> HeldLease:
    lease = Lease(
        job_id=uuid4(),
        fencing_token=1,
        owner="w/1",
        task=task,
        args={},
        attempt=1,
        max_attempts=5,
        needs_start_record=False,
        reaps=0,
        priority=0,
        next_run_at=datetime(2030, 1, 1, tzinfo=UTC),
        lease_seconds=30.0,
        key=None,
        in_flow=False,
        group=None,
    )
    return HeldLease(lease, 0.0, Tally(lambda: 0.0).of("default"))


class Line:
    """All that an executor works with: what waits, in order, and what became of it."""

    shared = engine = None
    within: set[HeldLease] | None = None
    computing = queued = 0

    def __init__(self, app: Faultline, tasks: list[str]) -> None:
        self.waiting: Iterator[HeldLease] = iter([held(task) for task in tasks])
        self.endings: list[Ending | None] = []
        line: Any = self
        stop = Stop("w", line, app.host.monotonic, abandoned_threads_max=20)
        self._executor = Executor(app, line, marks=line, leases=line, completer=line, unstarted=line, stop=stop)

    async def run(self) -> int:
        """Run them all; answers how many tasks that took."""
        runners = 0
        while (hold := self.follow()) is not None:
            self._executor.start(hold, self)
            runners += 1
            await asyncio.wait(self._executor._runners)  # noqa: SLF001
        return runners

    def follow(self) -> HeldLease | None:
        return next(self.waiting, None)

    def finished(self, lease: Lease) -> None: ...

    async def mark(self, _: HeldLease) -> bool:
        raise AssertionError("no start is to be marked here")

    def in_doubt(self, _: HeldLease) -> bool:
        return False

    def ended(self, hold: HeldLease) -> None: ...

    def put(self, ending: Ending) -> None:
        self.endings.append(ending)

    def nothing_to_write(self, _: HeldLease) -> None:
        self.endings.append(None)


def test_jobs_that_wait_in_line_share_a_task(app: Faultline) -> None:
    @app.task
    async def plain() -> None:
        await asyncio.sleep(0)

    line = Line(app, ["plain"] * 50)

    assert asyncio.run(line.run()) == 1
    assert [type(ending) for ending in line.endings] == [Completed] * 50


def test_what_a_job_puts_into_the_context_is_gone_for_the_next(app: Faultline) -> None:
    seen: list[Any] = []

    @app.task
    async def sign_in() -> None:
        seen.append(USER.get())
        USER.set("ann")

    @app.task
    async def sign_in_and_out() -> None:
        seen.append(USER.get())
        USER.reset(USER.set("bob"))

    line = Line(app, ["sign_in", "sign_in", "sign_in_and_out", "sign_in_and_out", "sign_in"])

    assert asyncio.run(line.run()) == 3, "a context that is as it was before may be used again"
    assert seen == [None] * 5


def test_a_context_that_cannot_be_compared_counts_as_changed(app: Faultline) -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise TypeError("these cannot be compared")

    seen: list[Any] = []

    @app.task
    async def sets_it() -> None:
        seen.append(USER.get())
        USER.set(Odd())

    async def story() -> int:
        USER.set(Odd())
        return await Line(app, ["sets_it"] * 3).run()

    assert asyncio.run(story()) == 3
    assert len(set(map(id, seen))) == 1


def test_a_cancel_that_comes_too_late_for_one_job_does_not_hit_the_next(app: Faultline) -> None:
    @app.task
    async def cancels_itself_and_leaves() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]

    @app.task
    async def waits() -> None:
        await asyncio.sleep(0)

    line = Line(app, ["cancels_itself_and_leaves", "waits"])
    asyncio.run(line.run())

    assert [type(ending) for ending in line.endings] == [Completed, Completed]


def test_a_lease_that_is_lost_as_its_attempt_ends_cancels_nobody_else() -> None:
    async def story() -> bool:
        hold, runner = held("t"), asyncio.current_task()
        assert runner is not None
        hold.run_by(runner)
        hold.lose("lease_expired")  # cancels from the next turn of the loop on
        hold.attempt = None  # the attempt is over, and the task runs another
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
        return False

    assert asyncio.run(story()) is False


@pytest.mark.parametrize(("distrusted", "sent"), [(True, [Completed]), (False, [])])
def test_a_finished_job_is_submitted_although_its_lease_was_distrusted_but_not_when_it_was_refused(
    app: Faultline,
    distrusted: bool,  # noqa: FBT001
    sent: list[type],
) -> None:
    hold = held("finishes")

    @app.task
    async def finishes() -> None:
        hold.lose("lease_expired", distrusted=distrusted)

    line = Line(app, [])
    line.waiting = iter([hold])
    asyncio.run(line.run())

    assert [type(ending) for ending in line.endings if ending is not None] == sent


def test_jobs_that_never_wait_leave_the_loop_to_others(app: Faultline) -> None:
    ran, turns = 0, []

    @app.task
    async def never_waits() -> None:
        nonlocal ran
        ran += 1

    async def story() -> None:
        running = asyncio.create_task(Line(app, ["never_waits"] * 1000).run())
        while not running.done():
            before = ran
            await asyncio.sleep(0)
            turns.append(ran - before)

    asyncio.run(story())

    assert ran == 1000
    assert max(turns) <= 101
