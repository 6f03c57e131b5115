"""What a retry of a flow runs again and what it keeps: with the clock running and standing still."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import (
    BlockingJob,
    Cancel,
    ChildFailed,
    DatabaseBusy,
    Faultline,
    IllegalTransition,
    Job,
    SignalTimeout,
    StepFailed,
    operate,
)
from faultline.store.reads.failures import FailedFilter
from faultline.testing import Drained, drain, frozen_time
from tests.waiting import until
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline import JobHandle


@pytest.fixture(params=["running", "frozen"])
def clock(request: pytest.FixtureRequest, app: Faultline) -> Iterator[str]:
    """The database's clock."""
    with frozen_time(app) if request.param == "frozen" else contextlib.nullcontext():
        yield request.param


def ended(app: Faultline, handle: JobHandle[Any], *, concurrency: int = 1) -> Any:
    drain(app, concurrency=concurrency)
    job = handle.job()
    return job.result if job.state == "succeeded" else f"{job.state}: {job.last_error}".split("\n", maxsplit=1)[0]


def states(handle: JobHandle[Any]) -> str:
    return handle.job().state


class Broken(dict[str, bool]):
    """What does not work yet."""

    def check(self, what: Any) -> None:
        if self.get(str(what)):
            raise ValueError(f"{what} does not work")


@pytest.fixture
def broken() -> Broken:
    return Broken()


def enqueue_map(app: Faultline, ways: dict[int, str]) -> JobHandle[Any]:
    """A job with three children. Number 1 ends as `ways` says."""

    @app.task(max_attempts=1)
    def child(number: int) -> Any:
        if ways.get(number) == "fails":
            raise ValueError("broken")
        return Cancel("not wanted") if ways.get(number) == "returns Cancel" else number

    @app.task
    async def parent(job: Job) -> list[int]:
        return await job.map(child, [0, 1, 2])

    return parent.enqueue()


@pytest.mark.parametrize("way", ["fails", "returns Cancel", "cancelled by hand"])
def test_a_child_that_stopped_its_parent_runs_again_however_it_ended(app: Faultline, way: str, clock: str) -> None:
    ways = {1: way}
    handle = enqueue_map(app, ways)
    if way == "cancelled by hand":
        app.tasks["child"].fn = _cancelling(app)
    assert str(ended(app, handle)).startswith("failed: ChildFailed: ")
    ways.clear()

    [child] = [job for job in app.jobs(task="child") if job.state != "succeeded"]
    with pytest.raises(IllegalTransition, match=rf"is a child of job {handle.id}, which is failed; retry that job instead"):
        app.retry(child.id)
    handle.retry()

    assert ended(app, handle) == [0, 1, 2]


def _cancelling(app: Faultline) -> Any:
    """The second child is cancelled by hand when it runs first."""
    once: list[int] = []

    def child(number: int) -> int:
        if number == 1 and not once:
            once.append(1)
            [job] = app.jobs(task="child", state="running")
            app.cancel(job.id, "by mistake")
        return number

    return child


def test_a_child_that_expired_runs_again_with_its_parent(app: Faultline) -> None:
    @app.task(queue="late", expires=60)
    def child() -> str:
        return "late"

    @app.task
    async def parent(job: Job) -> str:
        return await job.call(child)

    handle = parent.enqueue()
    with frozen_time(app) as time:
        drain(app, "default")
        time.advance(61)
        assert "expired" in ended(app, handle)
        handle.retry()
        time.advance(61)

        assert ended(app, handle) == "late"


def test_after_an_alert_the_failed_child_runs_again_and_the_alert_is_no_part_of_the_program(
    app: Faultline, broken: Broken, clock: str
) -> None:
    alerts = []

    @app.step
    def alert() -> None:
        alerts.append("alert")

    @app.step
    def ship() -> str:
        return "shipped"

    @app.task(max_attempts=1)
    def pay() -> None:
        broken.check("pay")

    @app.task
    async def program(job: Job) -> str:
        try:
            await job.call(pay)
        except ChildFailed:
            await job.do(alert)
            raise
        await job.sleep(0)
        return await job.do(ship)

    broken["pay"] = True
    handle = program.enqueue()
    assert "pay does not work" in ended(app, handle)
    handle.retry()
    assert "pay does not work" in ended(app, handle)
    broken.clear()
    handle.retry()

    assert ended(app, handle) == "shipped"
    # What it called after the failure is kept if it calls it again in the same way.
    assert alerts == ["alert"]


@pytest.mark.parametrize("way", ["from", "in except", "later"])
def test_what_a_failure_was_made_into_is_that_failure(app: Faultline, broken: Broken, clock: str, way: str) -> None:
    @app.step
    def note() -> None: ...

    @app.task(max_attempts=1)
    def pay() -> str:
        broken.check("pay")
        return "paid"

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        found = None
        try:
            return await job.call(pay)
        except ChildFailed as error:
            found = error
            if way != "later":
                await job.do(note)
            if way == "from":
                raise RuntimeError("no order") from error
            if way == "in except":
                raise RuntimeError("no order")  # noqa: B904 - as users write it
        raise RuntimeError(f"no order: {found}")

    broken["pay"] = True
    handle = program.enqueue()
    assert "no order" in ended(app, handle)
    broken.clear()
    handle.retry()

    assert ended(app, handle) == "paid"


def test_a_step_whose_failure_was_recorded_and_raised_runs_again(app: Faultline, broken: Broken, clock: str) -> None:
    ran = []

    @app.step
    def pay(what: str) -> str:
        ran.append(what)
        broken.check(what)
        return what

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        await job.do(pay, "before")
        try:
            return await job.do(pay, "it")
        except StepFailed:
            await job.do(pay, "alert")
            raise

    broken["it"] = True
    handle = program.enqueue()
    assert "it does not work" in ended(app, handle)
    broken.clear()
    handle.retry()

    assert ended(app, handle) == "it"
    assert ran == ["before", "it", "alert", "it"]


def test_of_many_failures_that_a_program_collected_only_these_run_again(app: Faultline, broken: Broken, clock: str) -> None:
    ran = []

    @app.task(max_attempts=1)
    def pay(number: int) -> int:
        ran.append(number)
        broken.check(number)
        return number

    @app.task(max_attempts=1)
    async def program(job: Job) -> list[int]:
        paid, failures = [], []
        for number in range(5):
            try:
                paid.append(await job.call(pay, number))
            except ChildFailed as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup("some were not paid", failures)
        return paid

    broken.update({"1": True, "3": True})
    handle = program.enqueue()
    assert "some were not paid" in ended(app, handle)
    broken.clear()
    handle.retry()

    assert ended(app, handle) == [0, 1, 2, 3, 4]
    assert sorted(ran) == [0, 1, 1, 2, 3, 3, 4]


def test_a_failure_past_which_the_program_went_is_kept(app: Faultline, broken: Broken, clock: str) -> None:
    ran = []

    @app.task(max_attempts=1)
    def pay(how: str) -> str:
        ran.append(how)
        broken.check(how)
        return how

    @app.step
    def ship() -> str:
        broken.check("ship")
        return "shipped"

    @app.task(max_attempts=1)
    async def program(job: Job) -> list[str]:
        try:
            paid = await job.call(pay, "card")
        except ChildFailed:
            paid = await job.call(pay, "invoice")
        return [paid, await job.do(ship)]

    broken.update(card=True, ship=True)
    handle = program.enqueue()
    assert "ship does not work" in ended(app, handle)
    broken.clear()
    handle.retry()

    assert ended(app, handle) == ["invoice", "shipped"]
    assert ran == ["card", "invoice"]


def test_what_was_closed_beside_the_failure_is_waited_for_again(app: Faultline, broken: Broken) -> None:
    @app.step
    def alert() -> None: ...

    @app.task(max_attempts=1)
    def pay() -> str:
        broken.check("pay")
        return "paid"

    @app.task
    async def program(job: Job) -> list[Any]:
        try:
            return list(await job.gather(job.call(pay), job.sleep(100), job.receive("go", int)))
        except ChildFailed:
            await job.do(alert)
            raise

    broken["pay"] = True
    handle = program.enqueue()
    with frozen_time(app) as time:
        assert "pay does not work" in ended(app, handle)
        broken.clear()
        handle.retry()
        drain(app)
        handle.signal("go", 7)
        drain(app, advancing=time)

        assert handle.job().result == ["paid", None, 7]


@pytest.mark.parametrize("blocking", [False, True])
def test_a_winner_of_a_race_that_failed_runs_again(app: Faultline, broken: Broken, clock: str, *, blocking: bool) -> None:
    @app.task(max_attempts=1)
    def pay() -> str:
        broken.check("pay")
        return "paid"

    if blocking:

        @app.task(name="program")
        def blocking_program(job: BlockingJob) -> Any:
            return job.race(job.later.call(pay), job.later.sleep(1000))
    else:

        @app.task
        async def program(job: Job) -> Any:
            return await job.race(job.call(pay), job.sleep(1000))

    broken["pay"] = True
    handle: JobHandle[Any] = app.tasks["program"].enqueue()
    assert "pay does not work" in ended(app, handle)
    broken.clear()
    handle.retry()

    assert ended(app, handle) == [0, "paid"]


def test_a_timeout_after_which_the_program_alerted_is_waited_for_again(app: Faultline) -> None:
    @app.step
    def alert() -> None: ...

    @app.task
    async def program(job: Job) -> int:
        try:
            return await job.receive("go", int, timeout=60)
        except SignalTimeout:
            await job.do(alert)
            raise

    handle = program.enqueue()
    with frozen_time(app) as time:
        drain(app, advancing=time)
        assert "no signal go came" in str(handle.job().last_error)
        handle.retry()
        drain(app)
        handle.signal("go", 7)

        assert ended(app, handle) == 7


def test_a_fork_calls_what_failed_anew_also_after_an_alert(app: Faultline, broken: Broken, clock: str) -> None:
    ran = []

    @app.step
    def alert() -> None:
        ran.append("alert")

    @app.task(max_attempts=1)
    def pay() -> str:
        ran.append("pay")
        broken.check("pay")
        return "paid"

    @app.task
    async def program(job: Job) -> str:
        try:
            return await job.call(pay)
        except ChildFailed:
            await job.do(alert)
            raise

    broken["pay"] = True
    handle = program.enqueue()
    ended(app, handle)
    broken.clear()

    assert ended(app, handle.fork()) == "paid"
    assert ran == ["pay", "alert", "pay"]


def test_a_saga_that_was_undone_is_not_retried(app: Faultline, broken: Broken) -> None:
    @app.step
    def book() -> None:
        broken.check("book")

    @app.task
    async def trip(job: Job) -> str:
        await job.sleep(0)
        async with job.saga() as saga:
            await saga.do(book)
        return "booked"

    @app.task
    async def parent(job: Job) -> str:
        return await job.call(trip)

    broken["book"] = True
    alone, above = trip.enqueue(), parent.enqueue()
    drain(app)
    broken.clear()

    with pytest.raises(IllegalTransition, match="the saga of call 2 was undone; fork it before call 2"):
        alone.retry()
    with pytest.raises(IllegalTransition, match=rf"{above.id} cannot be retried: .* undone; fork it before call 1"):
        above.retry()
    assert ended(app, alone.fork(before=2)) == "booked"
    assert ended(app, above.fork(before=1)) == "booked"


def test_drain_ends_where_a_program_has_changed(app: Faultline) -> None:
    code = ["a"]

    @app.step
    def a() -> None: ...

    @app.step
    def b() -> None: ...

    @app.task
    async def program(job: Job) -> str:
        await job.do(a if code == ["a"] else b)
        await job.receive("go")
        return "done"

    handle = program.enqueue()
    with frozen_time(app) as time:
        drain(app)
        code[:] = ["b"]
        handle.signal("go")
        drained: Drained = drain(app, advancing=time)

        assert drained.succeeded == 0
        assert "call 1 was 'a' when this job ran it, and is 'b' now" in drained.changed[0]
        assert states(handle) == "queued"


class Graph:
    """a and b, then a report of them that is made in any case, then what comes after the report."""

    def __init__(self, app: Faultline, broken: Broken, *, keep_args: bool = True, holding: bool = False) -> None:
        self.ran: list[str] = []
        self.reports: list[dict[str, str]] = []

        @app.task(max_attempts=1)
        def work(name: str) -> str:
            self.ran.append(name)
            broken.check(name)
            return name

        @app.task(max_attempts=1, keep_args=keep_args)
        async def report(job: Job, title: str) -> dict[str, str]:
            found = {name: str(one.state) for name, one in (await job.upstream()).items()}
            if found["b"] == "failed":
                await job.do(alert)
            broken.check("report")
            self.reports.append(found)
            return {"title": title, **found}

        @app.step
        def alert() -> None: ...

        with app.flow("nightly") as flow:
            a = flow.add(work, "a", name="a")
            b = flow.add(work, "b", name="b")
            made = flow.add(report, "Report", after=[a, b], if_failed="run", name="report")
            flow.add(work, "mail", after=[made], name="mail")
            flow.add(work, "load", after=[b], name="load")
            if holding:
                flow.add(work.options(queue="held"), "later", name="later")
        self.handle = flow.enqueue()


@pytest.mark.parametrize("also", ["", "report", "mail"])
def test_what_comes_after_a_retried_job_of_a_graph_runs_again(app: Faultline, broken: Broken, clock: str, also: str) -> None:
    broken.update({"b": True, also: True})
    graph = Graph(app, broken)
    assert "did not succeed: b failed" in ended(app, graph.handle)
    old = graph.handle.jobs["report"]
    broken.clear()

    with pytest.raises(IllegalTransition, match="retry that job instead: what has succeeded is kept"):
        graph.handle.jobs["b"].retry()
    graph.handle.retry()

    assert ended(app, graph.handle) == {"mail": "mail", "load": "load"}
    assert graph.reports[-1] == {"a": "succeeded", "b": "succeeded"}
    assert graph.ran.count("a") == 1
    if also != "report":
        # It stands in the ledger once, as it was. Another job stands in for it.
        assert old.job().result["b"] == "failed"
        [new] = [job for job in app.jobs(task="report") if job.id != old.id]
        assert app.job(new.id).result == {"title": "Report", "a": "succeeded", "b": "succeeded"}
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute("select faultline.prune('flows', interval '0', 100)")
        left = connection.execute("select count(*) from faultline.jobs where flow_id is not null").fetchone()
    assert clock == "frozen" or left == (0,)


def test_a_job_of_a_graph_is_retried_alone_while_the_graph_runs(app: Faultline, broken: Broken) -> None:
    broken["b"] = True
    graph = Graph(app, broken, holding=True)
    drain(app, "default")
    assert graph.reports == [{"a": "succeeded", "b": "failed"}]
    broken.clear()

    graph.handle.jobs["b"].retry()
    drain(app)

    assert graph.reports[1:] == [{"a": "succeeded", "b": "succeeded"}]
    assert graph.handle.job().state == "succeeded"


def test_a_retry_that_would_leave_a_result_of_the_failure_is_refused(app: Faultline, broken: Broken) -> None:
    broken["b"] = True
    graph = Graph(app, broken, keep_args=False)
    drain(app)

    with pytest.raises(IllegalTransition, match="cannot run again: its arguments were not kept; enqueue the graph again"):
        graph.handle.retry()
    work = operate.RetryFailed(FailedFilter())
    while (batch := work.batch()) is not None:
        work.took(app.database.run(batch))

    # Of b, its parent is to be retried, and that is refused.
    assert (work.jobs, work.refused) == (0, 2)
    assert graph.handle.jobs["load"].job().state == "cancelled"


def test_a_job_is_not_retried_while_its_child_is_undone(app: Faultline) -> None:
    """The child would end as cancelled, and its parent by that, in a run that nobody wants."""
    undone: list[int] = []

    @app.step
    def flight() -> int:
        return 1

    @app.step
    def cancel_flight(_: int | None) -> None:
        undone.append(1)

    @app.task(queue="trips")
    async def trip(job: Job) -> None:
        async with job.saga() as saga:
            await saga.do(flight, undo=cancel_flight)
            await job.receive("go")

    @app.task
    async def tour(job: Job) -> None:
        await job.call(trip)

    handle = tour.enqueue()
    drain(app)
    handle.cancel(undo=True)
    drain(app, "default")
    assert undone == []

    with pytest.raises(DatabaseBusy, match=r"cannot be retried yet: its child .* is being undone; try again when"):
        handle.retry()
    drain(app)
    assert undone == [1]
    with pytest.raises(IllegalTransition, match=r"the saga of its child .* was undone"):
        handle.retry()


def test_two_who_retry_in_one_graph_do_not_wait_for_each_other(app: Faultline, dsn: str) -> None:
    """One locks what comes after its job, one after the other; the other one may have locked the last of them first."""

    @app.task(max_attempts=1)
    def part() -> None:
        raise ValueError("broken")

    @app.task
    async def waiting(job: Job) -> None:
        await job.receive("go")

    with app.flow("graph") as flow:
        flow.add(waiting)
        first, second = flow.add(part, name="first"), flow.add(part, name="second")
        middle = flow.add(part, name="middle", after=[first, second], if_failed="run")
        flow.add(part, name="last", after=[middle], if_failed="run")
    handle = flow.enqueue()
    drain(app)
    ids = {name: one.id for name, one in handle.jobs.items()}

    with contextlib.ExitStack() as stack:
        holder, one, other, watcher = (stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(4))
        threads = stack.enter_context(ThreadPoolExecutor(2))
        with holder.transaction():
            holder.execute("select from faultline.open_jobs where id = %s for update", (ids["middle"],))
            answers = [threads.submit(one.execute, "select faultline.retry(%s)", (ids["first"],))]
            _until_it_waits(watcher, one)
            # All but the first and the middle one.
            answers.append(threads.submit(other.execute, "select (faultline.retry_failed()).retried"))
            with contextlib.suppress(TimeoutError):
                answers[1].result(1)
            # The server looks for deadlocks a second after a statement began to wait.
        found = [answer.result(PATIENCE).fetchone() for answer in answers]

    assert found == [("queued",), (0,)]
    assert [app.job(ids[name]).state.value for name in ("first", "middle", "last")] == ["queued"] * 3


def _until_it_waits(connection: psycopg.Connection, other: psycopg.Connection) -> None:
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    until(lambda: connection.execute(query, (other.info.backend_pid,)).fetchone() == (True,))
