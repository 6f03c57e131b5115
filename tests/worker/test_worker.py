"""A worker inside this process, against a real server: queues, turns, wake-ups, and its end."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import BlockingJob, ConfigError, Faultline, JobState
from faultline.core.errors import SchemaMissing, StatementTimeout
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.worker.claim import feed
from tests.waiting import auntil
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline.store.database_facts import Facts
    from tests.driver import Driver


def test_async_and_blocking_tasks_run_and_give_their_results(app: Faultline) -> None:
    @app.task
    async def add(a: int, b: int = 1) -> int:
        await asyncio.sleep(0)
        return a + b

    @app.task
    def where(job: BlockingJob) -> str:
        assert job.attempt == 1
        return threading.current_thread().name

    found = results(app, [add.enqueue(1), add.enqueue(2, b=3), where.enqueue()])

    assert found[:2] == [2, 5]
    assert found[2].startswith("faultline-task")


def test_a_worker_of_many_queues_leaves_connections_to_others(dsn: str) -> None:
    opened = 0

    async def connect(dsn: str, **settings: Any) -> psycopg.AsyncConnection[Any]:
        nonlocal opened
        opened += 1
        return await psycopg.AsyncConnection.connect(dsn, **settings)

    app = Faultline(dsn, host=Host(aconnect=connect))

    @app.task
    async def nothing() -> str:
        return "done"

    queues = {f"q{number}": 1 for number in range(60)}
    handles = [nothing.options(queue=name).enqueue() for name in queues]

    assert results(app, handles, queues=queues) == ["done"] * 60
    assert opened <= 30
    app.close()


def test_a_queue_never_runs_more_at_once_than_it_was_given(app: Faultline) -> None:
    now: dict[str, int] = {"narrow": 0, "wide": 0}
    most = dict(now)

    @app.task
    async def count(queue: str) -> None:
        now[queue] += 1
        most[queue] = max(most[queue], now[queue])
        await asyncio.sleep(0.001)
        now[queue] -= 1

    handles = app.enqueue_many(count.options(queue=q).bind(q) for q in ("narrow", "wide") for _ in range(100))
    results(app, handles, queues={"narrow": 3, "wide": 40})

    assert most["narrow"] == 3
    assert 3 < most["wide"] <= 40


@pytest.mark.parametrize("queues", [{"default": 0}])
def test_a_worker_without_anything_to_do_is_refused(app: Faultline, queues: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="concurrency of queue default is 0"):
        app.worker(queues)


@pytest.mark.parametrize(
    ("name", "given", "allowed"),
    [
        *(("grace_seconds", given, "a number of seconds of at least 0") for given in (-1, math.nan, True, "30", None)),
        *(
            ("loop_timeout_seconds", given, "a number of seconds greater than 0, or inf")
            for given in (0, -1.0, math.nan, True, "60")
        ),
        *(("abandoned_threads_max", given, "a whole number of at least 0") for given in (-1, 1.5, math.nan, True, "20")),
    ],
)
def test_a_worker_is_refused_with_limits_that_make_no_sense(app: Faultline, name: str, given: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        app.worker({"default": 1}, **{name: given})

    assert str(refused.value).startswith(f"{name} is {given!r}; it must be {allowed}")


def test_leases_of_jobs_whose_ending_is_on_its_way_are_known_as_such(dsn: str, queue: Driver) -> None:
    """They are renewed later: what is renewed and completed at once is often refused for nothing."""
    ending: list[bool] = []

    class Sent(Faults):
        wanted = True

        def reach(self, point: str) -> None:
            if point == "before_complete_sent":
                ending.extend(hold.ending for hold in worker._heartbeat._holds.values())  # noqa: SLF001

    app = Faultline(dsn, host=Host(faults=Sent()))

    @app.task
    async def nothing() -> None: ...

    handle = nothing.enqueue()

    async def story() -> None:
        async with asyncio.timeout(PATIENCE), worker:
            await handle.aresult(PATIENCE)
            await app.async_database.close()

    worker = app.worker({"default": 1})
    asyncio.run(story())
    app.close()

    assert ending == [True]


def test_stopping_finishes_what_runs_and_gives_the_rest_back(app: Faultline, queue: Driver) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        running.set()
        await go_on.wait()
        return "finished"

    handles = [slow.enqueue() for _ in range(3)]

    async def main() -> None:
        worker = app.worker({"default": 1})
        stopping = asyncio.create_task(worker.run())
        await running.wait()
        worker.stop()
        go_on.set()
        await stopping
        await app.async_database.close()

    asyncio.run(main())

    jobs = [queue.job(handle.id) for handle in handles]
    assert [(job.state, job.attempt) for job in jobs] == [("succeeded", 1), ("queued", 0), ("queued", 0)]
    assert queue.value("select count(*) from faultline.workers") == 0


def test_a_worker_that_is_going_asks_no_more_to_be_woken(app: Faultline, queue: Driver) -> None:
    going = asyncio.Event()

    @app.task
    async def slow() -> None:
        going.set()
        async with asyncio.timeout(PATIENCE):
            await auntil(lambda: not queue.value("select cardinality(sleeping) from faultline.workers"))

    async def story() -> None:
        slow.enqueue()
        await going.wait()
        await auntil(lambda: queue.value("select cardinality(sleeping) from faultline.workers"))

    work(app, story)

    assert queue.value("select count(*) from faultline.ledger") == 1


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_what_does_not_finish_within_the_grace_time_is_given_back_with_its_attempt(
    app: Faultline, queue: Driver, kind: str
) -> None:
    running, release = threading.Event(), threading.Event()

    @app.task(name="async")
    async def endless() -> None:
        running.set()
        await asyncio.Event().wait()

    @app.task(name="blocking")
    def endless_blocking() -> None:
        running.set()
        release.wait(PATIENCE)

    handle = app.tasks[kind].enqueue()

    async def story() -> None:
        await asyncio.to_thread(running.wait, PATIENCE)

    work(app, story, grace_seconds=0.05)
    release.set()

    assert (queue.state(handle.id), queue.job(handle.id).attempt) == (JobState.QUEUED, 0)


def test_a_worker_goes_on_after_all_its_connections_were_cut(app: Faultline, queue: Driver, dsn: str) -> None:
    cut_at = {100, 300}

    @app.task
    async def note(n: int) -> int:
        if n in cut_at:
            await asyncio.to_thread(_cut, dsn, queue.connection.info.backend_pid)
        return n

    handles = app.enqueue_many(note.bind(n) for n in range(500))

    async def story() -> None:
        await auntil(lambda: queue.value("select count(*) from faultline.ledger") >= len(handles))

    work(app, story)

    assert queue.value(
        "select array_agg(result::text::integer order by result::text::integer) from faultline.ledger"
    ) == list(range(500))
    assert queue.broken_invariants() == []


def _cut(dsn: str, spared: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid not in (pg_backend_pid(), %s)",
            (spared,),
        )


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody is told of is not found within any test."""
    monkeypatch.setattr(feed, "POLL_SECONDS_MIN", 10 * PATIENCE)
    monkeypatch.setattr(feed, "POLL_SECONDS_MAX", 10 * PATIENCE)


@pytest.mark.usefixtures("rare_polls")
def test_a_new_job_wakes_a_sleeping_worker(app: Faultline, queue: Driver) -> None:
    @app.task
    async def hello() -> str:
        return "hello"

    async def story() -> str:
        await until_asleep(queue)
        return await (await hello.aenqueue()).aresult(PATIENCE)

    assert work(app, story) == "hello"


@pytest.mark.usefixtures("rare_polls")
def test_a_dead_listener_is_replaced_and_wakes_again(app: Faultline, queue: Driver) -> None:
    @app.task
    async def hello() -> str:
        return "hello"

    listeners = (
        "select coalesce(array_agg(pid), '{}') from pg_stat_activity"
        " where datname = current_database() and query ilike 'listen%' and state = 'idle'"
    )

    async def story() -> str:
        while not (old := queue.value(listeners)):
            await asyncio.sleep(0.01)
        queue.value("select pg_terminate_backend(%s)", old[0])
        while not (new := queue.value(listeners)) or new == old:
            await asyncio.sleep(0.01)
        await until_asleep(queue)
        return await (await hello.aenqueue()).aresult(PATIENCE)

    assert work(app, story) == "hello"


async def until_asleep(queue: Driver) -> None:
    await auntil(lambda: queue.value("select coalesce(max(sleeping::text), '') from faultline.workers") == "{default}")


def test_a_flooded_queue_does_not_hold_up_another(app: Faultline, queue: Driver) -> None:
    @app.task(queue="flood")
    async def drop() -> None: ...

    @app.task(queue="trickle")
    async def note() -> int:
        return int(queue.value("select count(*) from faultline.open_jobs where queue = 'flood' and state = 'queued'"))

    app.enqueue_many([drop.bind()] * 20_000)
    handles = app.enqueue_many([note.bind()] * 10)

    left = results(app, handles, queues={"flood": 50, "trickle": 2}, grace_seconds=0)

    assert min(left) > 0  # all ten ran while the flood was far from over


def test_what_was_claimed_later_but_is_more_urgent_runs_first(app: Faultline, queue: Driver) -> None:
    order: list[str] = []
    going_on = asyncio.Event()

    @app.task
    async def slow() -> None:
        order.append("slow")
        await going_on.wait()

    @app.task
    async def late(name: str) -> None:
        order.append(name)

    from faultline.worker.base.counters import Tally  # noqa: PLC0415
    from faultline.worker.lease.held_lease import HeldLease  # noqa: PLC0415
    from faultline.worker.worker import Worker  # noqa: PLC0415

    async def story() -> None:
        worker = Worker(app, {"default": 1})
        async with worker:
            slow.enqueue()
            await auntil(lambda: order)
            feed = worker._feeds["default"]  # noqa: SLF001 - what it holds ahead is its own affair, and the point here
            for name, priority in (("later", 0), ("urgent", -5)):
                queue.enqueue("late", {"name": name}, priority=priority)
                (lease,) = queue.claim(1)
                feed.put([HeldLease(lease, 0.0, Tally(lambda: 0.0).of("default"))])
            going_on.set()
            await auntil(lambda: len(order) >= 3)
        await app.async_database.close()

    asyncio.run(story())
    assert order == ["slow", "urgent", "later"]


def test_a_lease_shorter_than_a_beat_is_kept(app: Faultline, queue: Driver) -> None:
    @app.task(lease=0.9)
    async def slow() -> None:
        await asyncio.sleep(2)

    handle = slow.enqueue()
    results(app, [handle])

    assert queue.job(handle.id).fencing_token == 1
    assert queue.journal(handle.id) == []


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.DeadlockDetected("deadlock detected"),
        psycopg.errors.InternalError_("a bug"),
        StatementTimeout("canceling statement"),
    ],
)
def test_a_worker_that_is_refused_when_it_starts_tries_again(app: Faultline, error: Exception) -> None:
    async def story() -> int:
        worker = app.worker({"default": 1})
        facts, asked = worker._database.facts, 0  # noqa: SLF001

        async def refused_once() -> Facts:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise error
            return await facts()

        worker._database.facts = refused_once  # type: ignore[method-assign]  # noqa: SLF001
        async with worker:
            return asked

    assert asyncio.run(story()) == 2


def test_a_worker_without_a_schema_does_not_wait_for_one(app: Faultline) -> None:
    async def story() -> None:
        worker = app.worker({"default": 1})

        async def missing() -> Facts:
            raise SchemaMissing("no schema")

        worker._database.facts = missing  # type: ignore[method-assign]  # noqa: SLF001
        async with worker:
            pass

    with pytest.raises(SchemaMissing):
        asyncio.run(story())


def tasks_made_for(app: Faultline, jobs: int, story: Callable[[], Awaitable[None]]) -> int:
    """How many tasks a worker made beyond those that it makes anyway."""
    made = 0

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **words: Any) -> asyncio.Task[Any]:
        nonlocal made
        made += "Executor._run" in getattr(coro, "__qualname__", "")
        return asyncio.Task(coro, loop=loop, **words)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        async with asyncio.timeout(PATIENCE), app.worker({"default": jobs}):
            await story()
        await app.aclose()

    asyncio.run(main())
    return made


def test_jobs_that_never_wait_are_run_by_a_few_tasks(app: Faultline, queue: Driver) -> None:
    """To make a task takes longer than to run a job that does nothing."""

    @app.task
    async def nothing() -> None: ...

    async def story() -> None:
        await app.aenqueue_many([nothing.bind() for _ in range(200)])
        await auntil(lambda: queue.value("select count(*) from faultline.ledger") >= 200)

    assert 0 < tasks_made_for(app, 200, story) < 100


def test_jobs_that_wait_all_run_at_once(app: Faultline) -> None:
    running, all_run = 0, asyncio.Event()

    @app.task
    async def patient() -> None:
        nonlocal running
        running += 1
        if running == 200:
            all_run.set()
        await all_run.wait()

    async def story() -> None:
        await app.aenqueue_many([patient.bind() for _ in range(200)])
        await all_run.wait()

    assert tasks_made_for(app, 200, story) == 200
