"""Misfortunes that a running job meets with: some are the doing of the database, some its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import psycopg

from faultline import Faultline, FaultlineError, Job
from tests.waiting import auntil
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver


def terminate(dsn: str, pid: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))


def cancel(dsn: str, pid: int) -> None:
    """Cancel what this session does as soon as it sleeps or waits for a lock."""
    busy = "select wait_event in ('PgSleep', 'relation') from pg_stat_activity where pid = %s and state = 'active'"
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (row := connection.execute(busy, (pid,)).fetchone()) is None or not row[0]:
            time.sleep(0.01)
        connection.execute("select pg_cancel_backend(%s)", (pid,))


@contextlib.contextmanager
def cancelled(dsn: str, pid: int) -> Iterator[None]:
    canceller = threading.Thread(target=cancel, args=(dsn, pid), daemon=True)
    canceller.start()
    try:
        yield
    finally:
        canceller.join()


@contextlib.contextmanager
def locked(dsn: str, table: str, mode: str = "exclusive") -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"lock table {table} in {mode} mode".encode())
        yield


FAIL_ONCE = (
    "create sequence public.failures",
    """create function public.fail_once() returns trigger language plpgsql as $$ begin
    if nextval('public.failures') = 1 then raise exception 'no space left on device' using errcode = '53100'; end if;
    return new; end $$""",
    """create trigger zz_fail_once before update on faultline.open_jobs for each row
    when (new.progress is distinct from old.progress) execute function public.fail_once()""",
)


class Scene:
    """What a misfortune needs to happen."""

    def __init__(self, queue: Driver, dsn: str) -> None:
        self.queue = queue
        self.dsn = dsn


async def session_ended(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        await asyncio.to_thread(terminate, scene.dsn, tx.connection.info.backend_pid)
        await tx.execute("select 1")


async def conflict(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("do $$ begin raise exception 'again' using errcode = '40001'; end $$")


async def cancelled_by_somebody(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        # A limit of its own that is far away does not make it the task's doing.
        await tx.execute("set local statement_timeout = '60s'")
        with cancelled(scene.dsn, tx.connection.info.backend_pid):
            await tx.execute("select pg_sleep(20)")


async def cancelled_in_a_savepoint(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx, tx.connection.transaction():
        with cancelled(scene.dsn, tx.connection.info.backend_pid):
            await tx.execute("select pg_sleep(20)")


async def cancelled_while_it_completes(job: Job, scene: Scene) -> None:
    """A statement of ours, in the job's transaction."""
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            canceller = threading.Thread(target=cancel, args=(scene.dsn, tx.connection.info.backend_pid), daemon=True)
            canceller.start()
            tx.complete("early")


async def its_completion_waits_too_long(job: Job, scene: Scene) -> None:
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("set local lock_timeout = '50ms'")
            tx.complete("early")


async def its_completion_takes_too_long(job: Job, scene: Scene) -> None:
    """The task has limited its own statements. This one is not its own."""
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("set local statement_timeout = '100ms'")
            tx.complete("early")


#: A commit ends with what its deferred triggers do.
AT_ITS_COMMIT = """
    create temp table written (n int) on commit drop;
    create function pg_temp.at_commit() returns trigger language plpgsql as $$ begin {}; return null; end $$;
    create constraint trigger at_commit after insert on written deferrable initially deferred
    for each row execute function pg_temp.at_commit();
    insert into written values (1)"""


async def its_commit_waits_too_long(job: Job, scene: Scene) -> None:
    """Nor is the commit."""
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute(AT_ITS_COMMIT.format("lock table faultline.ledger in row exclusive mode"))
            await tx.execute("set local lock_timeout = '50ms'")


async def refused_at_its_commit(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute(AT_ITS_COMMIT.format("raise exception 'the books do not balance'"))


async def own_idle_timeout(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("set local idle_in_transaction_session_timeout = '10ms'")
        await _session_has_ended(scene, tx)
        await tx.execute("select 1")


async def own_transaction_timeout(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute(_limit_of_transactions(tx))
        await tx.execute("select pg_sleep(20)")


async def own_transaction_timeout_while_idle(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute(_limit_of_transactions(tx))
        await _session_has_ended(scene, tx)
        await tx.execute("select 1")


async def own_transaction_timeout_before_it_completes(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute(_limit_of_transactions(tx))
        await _session_has_ended(scene, tx)
        tx.complete("early")


def _limit_of_transactions(tx: Any) -> str:
    """Servers before 17 have none: there, a statement's own."""
    if tx.connection.info.server_version < 170_000:
        return "set local idle_in_transaction_session_timeout = '50ms'; set local statement_timeout = '50ms'"
    return "set local transaction_timeout = '50ms'"


async def _session_has_ended(scene: Scene, tx: Any) -> None:
    there = f"select count(*) from pg_stat_activity where pid = {tx.connection.info.backend_pid}"
    await auntil(lambda: not scene.queue.value(there))


async def internal_error(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("do $$ begin raise exception 'a bug' using errcode = 'XX000'; end $$")


async def wrapped_inside(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        try:
            await tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")
        except psycopg.Error as error:
            raise RuntimeError("could not pay") from error


async def swallowed_inside(job: Job, _: Scene) -> None:
    """The transaction cannot be committed then, for the same reason."""
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error):
            await tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")


async def cancelled_while_it_fetches(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error), cancelled(scene.dsn, tx.connection.info.backend_pid):
            async with tx.cursor(name="sleepy") as cursor:
                await cursor.execute("select pg_sleep(20)")
                await cursor.fetchall()


async def cancelled_while_it_copies(job: Job, scene: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error), cancelled(scene.dsn, tx.connection.info.backend_pid):
            async with tx.cursor() as cursor, cursor.copy("copy (select pg_sleep(20)) to stdout") as copy:
                async for _ in copy:
                    pass


async def swallowed_before_a_step(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error):
            await tx.execute("do $$ begin raise exception 'full' using errcode = '53100'; end $$")
        await job.step("next", lambda: 1)


async def copied_onto_a_full_disk(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("create temp table copied (n int)")
        await tx.execute(
            "create function pg_temp.full() returns trigger language plpgsql as"
            " $$ begin raise exception 'full' using errcode = '53100'; end $$"
        )
        await tx.execute("create trigger t before insert on copied for each row execute function pg_temp.full()")
        async with tx.cursor() as cursor, cursor.copy("copy copied from stdin") as copy:
            await copy.write_row((1,))


async def full_disk(job: Job, _: Scene) -> None:
    await job.progress("half")


async def wrapped(job: Job, scene: Scene) -> None:
    try:
        await session_ended(job, scene)
    except FaultlineError as error:
        raise RuntimeError("could not pay") from error


async def in_a_group(job: Job, _: Scene) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(job.progress("half"))


async def no_answer_in_time(job: Job, scene: Scene) -> None:
    with scene.queue.connection.transaction():
        scene.queue.connection.execute("lock table faultline.open_jobs in access exclusive mode")
        async with asyncio.timeout(2.5):
            await job.progress("half")


async def another_database_lost(job: Job, scene: Scene) -> None:
    async with job.transaction():
        with psycopg.connect(scene.dsn, autocommit=True) as other:
            await asyncio.to_thread(terminate, scene.dsn, other.info.backend_pid)
            other.execute("select 1")


async def mistake_in_sql(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("select * from nowhere")


async def own_statement_timeout(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("set local statement_timeout = '20ms'")
        await tx.execute("select pg_sleep(20)")


async def own_lock_timeout(job: Job, scene: Scene) -> None:
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("set local lock_timeout = '20ms'")
            await tx.execute("lock table faultline.ledger in share mode")


async def no_wait(job: Job, scene: Scene) -> None:
    with locked(scene.dsn, "faultline.ledger"):
        async with job.transaction() as tx:
            await tx.execute("lock table faultline.ledger in share mode nowait")


async def no_wait_out_of_a_stream(job: Job, scene: Scene) -> None:
    """Past the guards: nobody has taken the time of its statement."""
    with psycopg.connect(scene.dsn) as other:
        other.execute("select from faultline.settings for update")
        async with job.transaction() as tx, tx.cursor() as cursor:
            async for _ in cursor.stream("select 1 from faultline.settings for update nowait"):
                pass


async def duplicate(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        await tx.execute("create temp table once (n int primary key deferrable initially deferred)")
        await tx.execute("insert into once values (1), (1)")


async def another_role(job: Job, scene: Scene) -> None:
    scene.queue.connection.execute("drop role if exists faultline_test_nobody")
    scene.queue.connection.execute("create role faultline_test_nobody")
    async with job.transaction() as tx:
        await tx.execute("set role faultline_test_nobody")


async def mistake_before_a_step(job: Job, _: Scene) -> None:
    async with job.transaction() as tx:
        with contextlib.suppress(psycopg.Error):
            await tx.execute("select * from nowhere")
        await job.step("next", lambda: 1)


async def handled_then_another(job: Job, _: Scene) -> None:
    with contextlib.suppress(psycopg.Error, FaultlineError):
        await job.progress("half")
    raise ValueError("mine")


async def raised_from_none(job: Job, _: Scene) -> None:
    try:
        await job.progress("half")
    except (psycopg.Error, FaultlineError):
        raise ValueError("mine") from None


Misfortune = Callable[[Job, Scene], Awaitable[None]]


def run_once_unlucky(app: Faultline, queue: Driver, dsn: str, misfortune: Misfortune) -> tuple[Any, int]:
    """The result of a job with one attempt, whose first run meets with this; and how often it ran."""
    runs = 0
    for statement in FAIL_ONCE:
        queue.connection.execute(statement.encode())

    @app.task(max_attempts=1)
    async def unlucky(job: Job) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            await misfortune(job, Scene(queue, dsn))
        return "done"

    return results(app, [unlucky.enqueue()])[0], runs


BY_THE_DATABASE: list[Misfortune] = [
    session_ended, conflict, full_disk, wrapped, in_a_group, no_answer_in_time, cancelled_by_somebody,
    cancelled_in_a_savepoint, cancelled_while_it_completes, its_completion_waits_too_long,
    its_completion_takes_too_long, internal_error, wrapped_inside, swallowed_inside, swallowed_before_a_step,
    cancelled_while_it_fetches, cancelled_while_it_copies,
    copied_onto_a_full_disk, its_commit_waits_too_long,
]  # fmt: skip


BY_THE_TASK: list[Misfortune] = [
    another_database_lost, mistake_in_sql, handled_then_another, raised_from_none, own_statement_timeout, own_lock_timeout,
    no_wait, no_wait_out_of_a_stream, duplicate, another_role, mistake_before_a_step,
    refused_at_its_commit, own_idle_timeout, own_transaction_timeout, own_transaction_timeout_while_idle,
    own_transaction_timeout_before_it_completes,
]  # fmt: skip
