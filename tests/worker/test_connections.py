"""What jobs borrow is never the engine's: no task can keep, break or use up what the worker needs for itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from faultline import BlockingJob, Faultline, Job
from faultline.store.database import Database
from faultline.store.reads import views
from faultline.worker.base.databases import Connections
from faultline_proof.proxy import Moment, Proxy
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from tests.driver import Driver

#: What makes a session useless for claims and completions, each by itself.
HOSTILE = [
    "set role faultline_viewer",
    "set statement_timeout = '1ms'",
    "set default_transaction_read_only = on",
    "set search_path = pg_temp",
    "set default_transaction_isolation = 'serializable'",
    "set lock_timeout = '1ms'",
    "select pg_advisory_lock(4711)",
    "listen faultline",
    "create temporary table open_jobs (id uuid)",
]


def spoil(connection: Any) -> None:
    connection.row_factory = dict_row
    connection.prepare_threshold = 0


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_job_that_spoils_its_session_harms_no_other(app: Faultline, kind: str) -> None:
    @app.task
    async def hostile(job: Job, statement: str) -> None:
        async with job.transaction() as tx:
            await tx.execute(statement)
            spoil(tx.connection)

    @app.task
    def hostile_in_a_thread(job: BlockingJob, statement: str) -> None:
        with job.transaction() as tx:
            tx.execute(statement)
            spoil(tx.connection)

    @app.task
    async def innocent(job: Job, n: int) -> int:
        async with job.transaction() as tx:
            row = await (await tx.execute("select %s::int", (n,))).fetchone()
            assert isinstance(row, tuple)
        return int(row[0])

    @app.task
    def innocent_in_a_thread(job: BlockingJob, n: int) -> int:
        with job.transaction() as tx:
            row = tx.execute("select %s::int", (n,)).fetchone()
            assert isinstance(row, tuple)
        return int(row[0])

    bad, good = (hostile, innocent) if kind == "async" else (hostile_in_a_thread, innocent_in_a_thread)

    async def story() -> Any:
        # Several at once, and again: every session that jobs may get has been through it.
        for _ in range(2):
            harmed = [bad.options(max_attempts=1).enqueue(statement) for statement in HOSTILE]
            await asyncio.gather(*(handle.aresult(PATIENCE) for handle in harmed), return_exceptions=True)
        handles = [good.options(max_attempts=1).enqueue(n) for n in range(30)]
        return [await handle.aresult(PATIENCE) for handle in handles]

    assert work(app, story, {"default": 5}) == list(range(30))


@pytest.mark.parametrize("given", [None, "dsn", "variable"])
def test_the_servers_list_of_sessions_tells_who_is_who(dsn: str, given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if given == "variable":
        monkeypatch.setenv("PGAPPNAME", "shop")
    app = Faultline(make_conninfo(dsn, application_name="shop") if given == "dsn" else dsn)
    sessions = (
        "select distinct application_name, application_name = current_setting('application_name') from pg_stat_activity"
        " where datname = current_database() and (pid = pg_backend_pid() or application_name ~ '^faultline worker|^shop')"
    )

    @app.task
    async def listed(job: Job) -> Any:
        async with job.transaction() as tx:
            return await (await tx.execute(sessions)).fetchall()

    @app.task
    def listed_in_a_thread(job: BlockingJob) -> Any:
        with job.transaction() as tx:
            return tx.execute(sessions).fetchall()

    async def main() -> tuple[str, list[Any]]:
        async with asyncio.timeout(PATIENCE), app.worker({"default": 2}) as worker:
            found = [await task.enqueue().aresult(PATIENCE) for task in (listed, listed_in_a_thread)]
            await app.aclose()
            return worker.id, found

    worker_id, found = asyncio.run(main())

    named = [["shop", True]] if given else [[f"faultline job {worker_id}", True], [f"faultline worker {worker_id}", False]]
    assert [sorted(seen) for seen in found] == [named, named]


def test_jobs_that_keep_all_connections_hold_up_neither_the_engine_nor_other_queues(app: Faultline) -> None:
    running, inside, enough = 0, 0, asyncio.Event()

    @app.task(queue="slow", max_attempts=1)
    async def slow(job: Job) -> str:
        nonlocal running, inside
        running += 1
        async with job.transaction():
            inside += 1
            await enough.wait()
        return "slow"

    @app.task(queue="quick", max_attempts=1)
    async def quick() -> str:
        return "quick"

    async def story() -> Any:
        held = [slow.enqueue() for _ in range(40)]
        while running < 40 or inside < 3:
            await asyncio.sleep(0.01)
        first = await quick.enqueue().aresult(PATIENCE)
        enough.set()
        return first, [await handle.aresult(PATIENCE) for handle in held]

    assert work(app, story, {"slow": 40, "quick": 1}, job_connections_max=3) == ("quick", ["slow"] * 40)


def test_blocking_and_async_jobs_share_one_number_of_connections(dsn: str) -> None:
    app = Faultline(make_conninfo(dsn, application_name="jobs"))
    entered, enough = threading.Semaphore(0), threading.Event()

    @app.task(max_attempts=1)
    def in_a_thread(job: BlockingJob) -> bool:
        with job.transaction():
            entered.release()
            return enough.wait(PATIENCE)

    @app.task(max_attempts=1)
    async def on_the_loop(job: Job) -> bool:
        async with job.transaction():
            entered.release()
            return await asyncio.to_thread(enough.wait, PATIENCE)

    async def story() -> Any:
        handles = [task.enqueue() for task in (in_a_thread, on_the_loop) for _ in range(4)]
        for _ in range(2):
            assert await asyncio.to_thread(entered.acquire, timeout=PATIENCE)
        with psycopg.connect(dsn) as watcher:
            inside = watcher.execute(
                "select count(*) from pg_stat_activity where application_name = 'jobs' and state = 'idle in transaction'"
            ).fetchone()
        enough.set()
        return inside, [await handle.aresult(PATIENCE) for handle in handles]

    try:
        assert work(app, story, {"default": 8}, job_connections_max=2) == ((2,), [True] * 8)
    finally:
        app.close()


@pytest.mark.parametrize(
    ("queues", "slots", "jobs_max", "most"),
    [(1, 1, None, 5), (1, 50, None, 25), (1, 50, 5, 10), (3, 6, None, 13), (40, 400, None, 40)],
)
def test_a_worker_says_how_many_connections_it_may_open(queues: int, slots: int, jobs_max: int | None, most: int) -> None:
    assert Connections.of(queues, slots, jobs_max).most == most


@pytest.mark.long
def test_many_workers_with_one_slot_each_take_four_connections_each_under_load(dsn: str, queue: Driver) -> None:
    """So that 64 of them leave room on a server with 300."""
    workers, jobs, peak = 8, 400, 0
    producer = Faultline(dsn)
    app = Faultline(make_conninfo(dsn, application_name="crowd"))

    @app.task(name="write", max_attempts=1)
    async def write(job: Job, n: int) -> int:
        async with job.transaction() as tx:
            await tx.execute("select pg_sleep(0.001)")
        await job.progress(n)
        return n

    @producer.task(name="write")
    async def same(n: int) -> int:
        return n

    async def main() -> int:
        nonlocal peak
        handles = producer.enqueue_many(same.bind(n) for n in range(jobs))
        crowd = [app.worker({"default": 1}) for _ in range(workers)]
        await asyncio.gather(*(worker.__aenter__() for worker in crowd))
        async with asyncio.timeout(120):
            while (state := queue.value("select count(*) from faultline.ledger")) < jobs:
                peak = max(peak, queue.value("select count(*) from pg_stat_activity where application_name = 'crowd'"))
                await asyncio.sleep(0.01)
        await asyncio.gather(*(worker.__aexit__(None, None, None) for worker in crowd))
        assert len(handles) == state
        return peak

    try:
        assert asyncio.run(main()) <= 4 * workers
    finally:
        app.close()
        producer.close()


@pytest.mark.parametrize("kind", ["thread", "kept", "kept_in_a_thread", "branch"])
def test_an_attempt_that_is_over_keeps_no_connection_from_the_others(app: Faultline, kind: str) -> None:
    release, entered = threading.Event(), threading.Semaphore(0)
    kept: list[Any] = []

    @app.task(name="thread", max_attempts=1, timeout=0.5)
    def stuck(job: BlockingJob) -> None:
        with job.transaction():
            entered.release()
            release.wait(PATIENCE)

    @app.task(name="kept", max_attempts=1)
    async def leaves_it_open(job: Job) -> None:
        kept.append(job.transaction())
        await kept[-1].__aenter__()
        entered.release()

    @app.task(name="kept_in_a_thread", max_attempts=1)
    def leaves_it_open_in_a_thread(job: BlockingJob) -> None:
        kept.append(job.transaction())
        kept[-1].__enter__()
        entered.release()

    @app.task(name="branch", max_attempts=1)
    async def leaves_a_branch_behind(job: Job) -> None:
        inside = asyncio.Event()

        async def branch() -> None:
            async with job.transaction():
                entered.release()
                inside.set()
                while not release.is_set():
                    await asyncio.sleep(0.01)

        kept.append(asyncio.create_task(branch()))
        await inside.wait()

    @app.task(max_attempts=1)
    async def innocent(job: Job) -> str:
        async with job.transaction():
            return "done"

    async def story() -> Any:
        over = [app.tasks[kind].enqueue() for _ in range(2)]
        await asyncio.gather(*(handle.aresult(PATIENCE) for handle in over), return_exceptions=True)
        assert entered.acquire(blocking=False)
        assert entered.acquire(blocking=False)
        try:
            async with asyncio.timeout(PATIENCE / 2):
                return [await innocent.enqueue().aresult(PATIENCE) for _ in range(3)]
        finally:
            release.set()
            await asyncio.gather(*(task for task in kept if isinstance(task, asyncio.Task)), return_exceptions=True)

    assert work(app, story, {"default": 4}, job_connections_max=2) == ["done"] * 3


@pytest.mark.parametrize("kind", ["async", "blocking"])
@pytest.mark.parametrize("death", ["known to the socket", "at begin"])
def test_a_job_is_not_run_again_because_a_pooled_connection_has_died(dsn: str, kind: str, death: str) -> None:
    """The server restarts or a standby is promoted while a job sleeps before its transaction."""
    with Proxy(dsn, tell=lambda *_, **__: None) as wire:
        app = Faultline(wire.dsn)
        runs: list[str] = []

        def die() -> None:
            if len(runs) > 1:
                return
            if death == "at begin":
                # Nobody is told before something is sent.
                wire.cut("^begin", Moment.BEFORE_SENT)
                return
            end_sessions(dsn)

        @app.task(max_attempts=1)
        async def pay(job: Job) -> str:
            runs.append("async")
            async with job.transaction():
                pass
            die()
            async with job.transaction() as tx:
                tx.complete("paid")
            return ""

        @app.task(max_attempts=1)
        def pay_in_a_thread(job: BlockingJob) -> str:
            runs.append("blocking")
            with job.transaction():
                pass
            die()
            with job.transaction() as tx:
                tx.complete("paid")
            return ""

        handle = (pay if kind == "async" else pay_in_a_thread).enqueue()

        assert results(app, [handle]) == ["paid"]
        assert runs == [kind]
        app.close()


def end_sessions(dsn: str) -> None:
    """End every other session of the database, as a restart does, and wait until the clients can know it."""
    others = "datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        end = f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where {others}"
        assert all(gone for (gone,) in connection.execute(end.encode()).fetchall())


def test_a_connection_that_has_ended_is_not_lent(dsn: str) -> None:
    with contextlib.closing(Database(dsn, connections_max=2)) as database:
        with database.connection() as first, database.connection() as second:
            pids = {first.info.backend_pid, second.info.backend_pid}
        end_sessions(dsn)

        with database.connection() as fresh:
            assert fresh.execute("select 1").fetchone() == (1,)
            assert fresh.info.backend_pid not in pids
        database.run(views.counts())
        assert database.reconnects == 0
