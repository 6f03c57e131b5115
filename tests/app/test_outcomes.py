"""What a task says of its own end is checked where it is said. A bad outcome harms its own job only."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Cancel, Fail, Faultline, Job, JobCancelled, JobFailed, JobState, Retry, Snooze, testing
from faultline.attempt.outcomes import Outcome
from faultline.core.errors import JobRejected
from faultline.core.host import Host
from faultline.core.model import Failure, Release
from tests.worker.working import PATIENCE, InFlight, results, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.driver import Driver

unchecked: Any = None  # what a type checker would refuse

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a negative snooze": (lambda: Snooze(-0.5), "between 0 and"),
    "a snooze of no number": (lambda: Snooze(float("nan")), "number of seconds"),
    "an endless snooze": (lambda: Snooze(float("inf")), "number of seconds"),
    "a snooze of a century": (lambda: Snooze(timedelta(days=36_500)), "between 0 and"),
    "a huge snooze": (lambda: Snooze(10**400), "number of seconds"),
    "a snooze of nothing": (lambda: Snooze(unchecked), "not None"),
    "a snooze of a text": (lambda: Snooze("60"), "number of seconds"),  # type: ignore[arg-type]
    "a snooze of a bool": (lambda: Snooze(True), "number of seconds"),
    "a negative retry": (lambda: Retry(after=timedelta(seconds=-1)), "between 0 and"),
    "a retry after no number": (lambda: Retry(after=float("nan")), "number of seconds"),
    "a retry for a number": (lambda: Retry(error=404), "text or an exception"),  # type: ignore[arg-type]
    "a retry for nothing": (lambda: Retry(error=unchecked), "text or an exception"),
    "a retry after a text": (lambda: Retry("soon"), "number of seconds"),  # type: ignore[arg-type]
    "a fail for a number": (lambda: Fail(404), "text or an exception"),  # type: ignore[arg-type]
    "a fail for nothing": (lambda: Fail(unchecked), "text or an exception"),
    "a cancel for nothing": (lambda: Cancel(unchecked), "text or an exception"),
    "a cancel for a dict": (lambda: Cancel({"why": "not"}), "text or an exception"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_outcome_is_refused_where_it_is_made(name: str) -> None:
    make, text = BAD[name]

    with pytest.raises(JobRejected, match=text) as raised:
        make()

    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("outcome", [Retry(after=5, error="x"), Fail("x"), Snooze(timedelta(seconds=1)), Cancel("no")])
def test_an_outcome_is_a_value(outcome: Any) -> None:
    field = outcome.__match_args__[0]

    assert outcome == pickle.loads(pickle.dumps(outcome))  # noqa: S301
    assert {outcome} == {pickle.loads(pickle.dumps(outcome))}  # noqa: S301
    assert outcome not in (Retry(), Fail(), Snooze(2), Cancel())
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(outcome, field, "another")


def test_an_outcome_can_be_raised_through_anything() -> None:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        yield

    with pytest.raises(Snooze) as raised, block():
        raise Snooze(1)

    raised.value.add_note("noted")
    assert raised.value == Snooze(1)


def test_a_retry_takes_the_exception_that_was_caught() -> None:
    assert Retry(error=ValueError("no route\x00 to \ud800 host")).error == "ValueError: no route\ufffd to ? host"


@pytest.mark.parametrize("said", ["returned", "raised"])
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_raising_an_outcome_is_returning_it(app: Faultline, queue: Driver, kind: str, said: str) -> None:
    tries: Counter[str] = Counter()

    def end(how: str) -> Any:
        tries[how] += 1
        if tries[how] > 1:
            return "again"
        outcome = {"retry": Retry(after=0, error="not yet"), "snooze": Snooze(0), "cancel": Cancel("not needed")}[how]
        if said == "raised":
            raise outcome
        return outcome

    async def aend(how: str) -> Any:
        return end(how)

    task = app.task(name="end", max_attempts=2)(aend if kind == "async" else end)
    handles = [task.enqueue(how) for how in ("retry", "snooze", "cancel")]
    found = results(app, handles)

    assert found[:2] == ["again", "again"]
    assert isinstance(found[2], JobCancelled)
    assert str(found[2]).endswith("was cancelled: not needed")
    assert [queue.job(handle.id).attempt for handle in handles] == [2, 1, 1]
    (first_try,) = queue.journal(handles[0].id)
    assert first_try.detail["error"] == "not yet"
    assert first_try.detail["next_run_at"][:19] == first_try.at.isoformat()[:19]
    assert queue.journal(handles[1].id) == []


def test_an_outcome_is_all_that_it_takes_to_end_an_attempt_in_another_way(app: Faultline, queue: Driver) -> None:
    class Tomorrow(Outcome):
        def decided(self, backoff: Callable[[], float]) -> Failure | Release:
            return Failure("not today", delay_seconds=backoff()) if tries["runs"] == 2 else Release(delay_seconds=0)

    tries: Counter[str] = Counter()

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def late() -> str | Tomorrow:
        tries["runs"] += 1
        if tries["runs"] == 3:
            return "done"
        raise Tomorrow

    handle = late.enqueue()
    assert results(app, [handle]) == ["done"]
    assert queue.job(handle.id).attempt == 2


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_bad_outcome_fails_its_own_attempt_and_harms_no_other(app: Faultline, kind: str) -> None:
    runs: Counter[str] = Counter()

    def misbehave(how: str) -> Any:
        runs[how] += 1
        return BAD[how][0]()

    async def amisbehave(how: str) -> Any:
        return misbehave(how)

    bad = app.task(name="bad", max_attempts=2, backoff=lambda _: 0)(amisbehave if kind == "async" else misbehave)

    @app.task(max_attempts=2)
    async def good(job: Job, n: int) -> Any:
        return Retry(after=0, error=KeyError(n)) if job.attempt == 1 else n

    handles = app.enqueue_many([*(bad.bind(how) for how in BAD), *(good.bind(n) for n in range(50))])
    found = results(app, handles)

    assert all(isinstance(error, JobFailed) and "JobRejected" in str(error) for error in found[: len(BAD)])
    assert found[len(BAD) :] == list(range(50))
    assert runs == dict.fromkeys(BAD, 2)


@pytest.mark.parametrize("how", ["cancel", "raise", "cancel in a group"])
def test_a_task_that_cancels_itself_uses_up_its_attempts(app: Faultline, how: str) -> None:
    runs = 0

    @app.task(max_attempts=3, backoff=lambda _: 0)
    async def give_up() -> None:
        nonlocal runs
        runs += 1
        if how == "raise":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if how == "cancel":
            await asyncio.sleep(PATIENCE)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(PATIENCE))

    @app.task
    async def other(n: int) -> int:
        return n

    found = results(app, [give_up.enqueue(), *(other.enqueue(n) for n in range(20))])

    assert isinstance(found[0], JobFailed)
    assert "it cancelled itself" in str(found[0])
    assert found[1:] == list(range(20))
    assert runs == 3


@pytest.mark.parametrize("how", ["return", "raise", "return while the worker stops"])
def test_a_program_that_ends_around_its_worker_gives_the_running_jobs_back(app: Faultline, queue: Driver, how: str) -> None:
    running, over = threading.Semaphore(0), threading.Event()

    @app.task(max_attempts=1)
    async def waits() -> None:
        running.release()
        await asyncio.Event().wait()

    @app.task(max_attempts=1)
    def blocks() -> None:
        running.release()
        over.wait(PATIENCE)

    handles = [waits.enqueue(), blocks.enqueue()]

    async def main() -> None:
        worker = app.worker({"default": 2})
        background = asyncio.create_task(worker.run())
        for _ in handles:
            await asyncio.to_thread(running.acquire, timeout=PATIENCE)
        if how == "raise":
            raise ZeroDivisionError
        if "stops" in how:
            worker.stop()
            await asyncio.wait([background], timeout=0.2)

    with contextlib.suppress(ZeroDivisionError):
        asyncio.run(main())
    over.set()

    assert [(queue.state(handle.id), queue.job(handle.id).attempt) for handle in handles] == [(JobState.QUEUED, 0)] * 2


@pytest.mark.parametrize(("verb", "state"), [("complete", JobState.SUCCEEDED), ("fail", JobState.FAILED)])
def test_an_ending_on_its_way_is_written_although_the_program_ends(
    dsn: str, queue: Driver, verb: str, state: JobState
) -> None:
    faults = InFlight(verb)
    app = Faultline(dsn, host=Host(faults=faults))
    ends = asyncio.Event()

    @app.task(max_attempts=1)
    async def short() -> None:
        if verb == "fail":
            raise ZeroDivisionError

    async def main() -> None:
        background = asyncio.create_task(app.worker({"default": 2}).run())
        await ends.wait()
        background.get_name()  # kept until here

    def cancel_all() -> None:
        faults.then = lambda: None
        ends.set()
        for task in asyncio.all_tasks():
            task.cancel()

    with app:
        handle = short.enqueue()
        faults.then = cancel_all
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(main())

    assert queue.state(handle.id) is state
    assert queue.refusals(handle.id) == []


def test_a_branch_that_ends_the_users_program_uses_up_an_attempt(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=1)
    async def exits() -> None:
        async def branch() -> None:
            raise SystemExit(3)

        async with asyncio.TaskGroup() as group:
            group.create_task(branch())

    handle = exits.enqueue()

    async def main() -> None:
        async with app.worker({"default": 2}):
            await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        asyncio.run(main())

    assert queue.state(handle.id) is JobState.FAILED


def test_what_a_task_makes_of_being_stopped_is_not_its_failure(app: Faultline, queue: Driver) -> None:
    running = threading.Event()

    @app.task(max_attempts=1)
    async def stubborn() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("somebody pulled the plug") from None

    handle = stubborn.enqueue()

    async def story() -> None:
        await asyncio.to_thread(running.wait, PATIENCE)

    work(app, story, grace_seconds=0.05)

    assert (queue.state(handle.id), queue.job(handle.id).attempt) == (JobState.QUEUED, 0)


def test_a_job_that_snoozes_for_no_time_is_given_a_short_rest(app: Faultline) -> None:
    runs: list[float] = []

    @app.task
    async def restless(job: Job) -> Any:
        runs.append(asyncio.get_running_loop().time())
        return Snooze(0) if job.fencing_token < 6 else None

    results(app, [restless.enqueue()])

    assert min(after - before for before, after in pairwise(runs)) > 0.09


UNSTORABLE: dict[str, Callable[[], Any]] = {
    "a set": lambda: {1, 2},
    "a NUL": lambda: "a\x00b",
    "half a character": lambda: "\ud800",
    "too large": lambda: "x" * 1_100_000,
    "a number beyond JSON": lambda: 10**400,
}


def test_a_coroutine_that_the_task_returns_fails_it_with_what_to_write(app: Faultline) -> None:
    @app.task(max_attempts=5, backoff=lambda _: 0)
    async def pay() -> Any:
        return asyncio.sleep(0)

    (error,) = results(app, [pay.enqueue()])

    assert "the task returned sleep(...), which was not awaited; write `return await sleep(...)`" in str(error)


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_result_that_cannot_be_stored_fails_once_and_for_good(app: Faultline, what: str) -> None:
    runs = 0

    @app.task(max_attempts=5, backoff=lambda _: 0)
    def pay() -> Any:
        nonlocal runs
        runs += 1
        return UNSTORABLE[what]()

    (error,) = results(app, [pay.enqueue()])

    assert isinstance(error, JobFailed)
    assert "cannot be stored" in str(error)
    assert "Return a small JSON value" in str(error)
    assert runs == 1


def test_an_outcome_that_is_raised_is_no_error_of_an_inline_task(app: Faultline) -> None:
    @app.task
    def never() -> None:
        raise Cancel("not needed")

    with testing.inline(app):
        handle = never.enqueue()

    with pytest.raises(JobCancelled, match="not needed"):
        handle.result(PATIENCE)
