"""`job.transaction(session)`: what a task writes through its own session and the end of its job commit together, or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

from faultline import BlockingJob, ConfigError, Faultline, Job, JobState, OutcomeUnknown, StaleLease
from faultline.core.host import Host
from faultline.testing import CutAt
from tests.joining.sessions import ASYNC, BLOCKING
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver

ORM = [kind for kind in BLOCKING if "ession" in kind or "connection" in kind]
ORM_ASYNC = [kind for kind in ASYNC if "ession" in kind or "connection" in kind]
EACH = pytest.mark.parametrize("kind", ORM)
EACH_ASYNC = pytest.mark.parametrize("kind", ORM_ASYNC)


class Base(DeclarativeBase): ...


class Paid(Base):
    __tablename__ = "paid"
    n: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(autouse=True)
def _paid(queue: Driver) -> None:
    queue.connection.execute("create table paid (n integer primary key)")


def paid(queue: Driver) -> list[int]:
    return [n for (n,) in queue.connection.execute("select n from paid order by n").fetchall()]


def lose_lease(queue: Driver) -> None:
    queue.connection.execute("update faultline.open_jobs set lease_expires_at = now() - interval '1 minute'")
    queue.reap(notice_dead=False)


@EACH
def test_writes_and_completion_commit_together(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> str:
        with BLOCKING[kind](app) as own:
            with job.transaction(own.session) as tx:
                own.execute("insert into paid values (1)")
                assert paid(queue) == []
                job.step("inside", lambda: 1)
                tx.complete("paid")
            assert paid(queue) == [1]
            # The session is the task's again.
            own.execute("insert into paid values (2)")
            own.commit()
        return "not this"

    handle = pay.enqueue()

    assert results(app, [handle]) == ["paid"]
    assert paid(queue) == [1, 2]


@EACH_ASYNC
def test_writes_and_completion_commit_together_in_async_tasks(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task(max_attempts=1)
    async def pay(job: Job) -> str:
        async with ASYNC[kind](app) as own:
            async with job.transaction(own.session) as tx:
                await own.execute("insert into paid values (1)")
                assert paid(queue) == []
                await job.step("inside", lambda: 1)
                tx.complete("paid")
            await own.execute("insert into paid values (2)")
            await own.commit()
        return "not this"

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert paid(queue) == [1, 2]


@EACH
def test_writes_are_refused_with_the_completion_when_the_lease_is_lost(app: Faultline, queue: Driver, kind: str) -> None:
    seen: list[BaseException] = []

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> str:
        if seen:
            return "taken over"
        with BLOCKING[kind](app) as own:
            own.execute("insert into paid values (1)")  # before the fence, in the same transaction
            lose_lease(queue)
            try:
                with job.transaction(own.session) as tx:
                    own.execute("insert into paid values (2)")
                    tx.complete()
            except StaleLease as error:
                seen.append(error)
                raise
        return "not this"

    handle = pay.enqueue()

    assert results(app, [handle]) == ["taken over"]
    assert paid(queue) == []
    assert queue.refusals(handle.id)[0][0] == "fence"


@EACH_ASYNC
def test_writes_are_refused_when_the_lease_is_lost_in_async_tasks(app: Faultline, queue: Driver, kind: str) -> None:
    seen: list[BaseException] = []

    @app.task(max_attempts=1)
    async def pay(job: Job) -> str:
        if seen:
            return "taken over"
        async with ASYNC[kind](app) as own:
            await own.execute("insert into paid values (1)")
            lose_lease(queue)
            try:
                async with job.transaction(own.session) as tx:
                    await own.execute("insert into paid values (2)")
                    tx.complete()
            except StaleLease as error:
                seen.append(error)
                raise
        return "not this"

    handle = pay.enqueue()

    assert results(app, [handle]) == ["taken over"]
    assert paid(queue) == []
    assert queue.refusals(handle.id)[0][0] == "fence"


@EACH
def test_an_error_in_the_block_undoes_all(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with BLOCKING[kind](app) as own:
            with pytest.raises(ZeroDivisionError), job.transaction(own.session) as tx:
                own.execute("insert into paid values (1)")
                tx.complete("not this")
                raise ZeroDivisionError
            with job.transaction(own.session) as tx:
                own.execute("insert into paid values (2)")
                tx.complete("this")

    assert results(app, [pay.enqueue()]) == ["this"]
    assert paid(queue) == [2]


def _caught(session: Session) -> None:
    with pytest.raises(Exception, match="zero"):
        session.execute(text("select 1/0"))


#: How a task may try to end the transaction of its session, and what it is told.
ENDINGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "commit": (lambda session: session.commit(), "must not be committed"),
    "the connection's commit": (lambda session: session.connection().commit(), "must not be committed"),
    "rollback": (lambda session: session.rollback(), "was rolled back inside"),
    "close": (lambda session: session.close(), "was rolled back inside"),
    "hidden commit": (lambda session: session.execute(text("select 1; commit")), "FenceBroken"),
    "hidden rollback": (lambda session: session.execute(text("select 1; rollback")), "FenceBroken"),
    "failed statement": (_caught, "cannot be committed"),
}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("how", ENDINGS)
def test_a_session_that_ends_its_transaction_completes_nothing(app: Faultline, queue: Driver, how: str, driver: str) -> None:
    end, message = ENDINGS[how]

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with BLOCKING[f"session on {driver}"](app) as own, job.transaction(own.session) as tx:
            own.session.add(Paid(n=1))
            own.session.flush()
            end(own.session)
            own.execute("insert into paid values (2)") if "rollback" in how else None
            tx.complete("not this")

    handle = pay.enqueue()
    (error,) = results(app, [handle])

    assert message in str(error)
    assert paid(queue) == ([1] if how == "hidden commit" else [])
    assert app.job(handle.id).state is JobState.FAILED


def test_an_async_session_that_ends_its_transaction_completes_nothing(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        engine = create_async_engine(app.url, poolclass=NullPool)
        async with AsyncSession(engine) as session, job.transaction(session) as tx:
            session.add(Paid(n=1))
            tx.complete("not this")
            await session.commit()

    (error,) = results(app, [pay.enqueue()])

    assert "must not be committed" in str(error)
    assert paid(queue) == []


def test_orm_objects_are_flushed_before_the_job_is_completed(app: Faultline, queue: Driver) -> None:
    queue.connection.execute("insert into paid values (1)")

    @app.task(max_attempts=1)
    def pay(job: BlockingJob, n: int) -> None:
        with Session(create_engine(app.url, poolclass=NullPool)) as session:
            try:
                with job.transaction(session) as tx:
                    with session.begin_nested():
                        session.add(Paid(n=n + 100))
                    session.add(Paid(n=n))
                    tx.complete(n)
            except IntegrityError:
                assert n == 1
                raise

    good, bad = pay.enqueue(2), pay.enqueue(1)
    result, error = results(app, [good, bad])

    assert result == 2
    assert "IntegrityError" in str(error)
    assert paid(queue) == [1, 2, 102]


def test_what_the_database_did_to_a_session_uses_up_no_attempt(app: Faultline, queue: Driver) -> None:
    runs: list[str] = []
    conflict = "do $$ begin raise exception 'conflict' using errcode = '40001'; end $$"

    @app.task(max_attempts=1, backoff=lambda _: 0)
    def pay(job: BlockingJob, kind: str) -> None:
        runs.append(kind)
        with BLOCKING[kind](app) as own, job.transaction(own.session) as tx:
            own.execute("insert into paid values (1) on conflict do nothing")
            if runs.count(kind) == 1:
                own.execute(conflict)
            tx.complete("paid")

    @app.task(max_attempts=1, backoff=lambda _: 0)
    async def apay(job: Job, kind: str) -> None:
        runs.append(f"async {kind}")
        async with ASYNC[kind](app) as own, job.transaction(own.session) as tx:
            if runs.count(f"async {kind}") == 1:
                await own.execute(conflict)
            tx.complete("paid")

    handles = [pay.enqueue(kind) for kind in ORM] + [apay.enqueue(kind) for kind in ORM_ASYNC]

    assert results(app, handles) == ["paid"] * len(handles)
    assert len(runs) == 2 * len(handles)


def test_a_connection_that_is_lost_before_the_commit_was_sent_leaves_nothing_unknown(app: Faultline, queue: Driver) -> None:
    """The ORM writes when it flushes: that must not be taken for the commit."""
    seen: list[BaseException] = []

    @app.task(max_attempts=1, backoff=lambda _: 0)
    def pay(job: BlockingJob) -> None:
        with Session(create_engine(app.url, poolclass=NullPool)) as session:
            try:
                with job.transaction(session) as tx:
                    if not seen:
                        pid = session.scalar(text("select pg_backend_pid()"))
                        queue.connection.execute("select pg_terminate_backend(%s, 5000)", (pid,))
                    session.add(Paid(n=1))
                    tx.complete("paid")
            except Exception as error:
                seen.append(error)
                raise

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert [type(error).__name__ for error in seen] == ["OperationalError"]


@pytest.mark.parametrize("kind", ["session on psycopg", "session on psycopg2"])
def test_a_lost_answer_to_the_commit_is_looked_up(dsn: str, queue: Driver, kind: str) -> None:
    with Faultline(dsn, host=Host(faults=CutAt("after_commit_committed"))) as app:

        @app.task(max_attempts=1)
        def pay(job: BlockingJob) -> None:
            with BLOCKING[kind](app) as own, job.transaction(own.session) as tx:
                own.execute("insert into paid values (1)")
                tx.complete("paid")

        assert results(app, [pay.enqueue()]) == ["paid"]
    assert paid(queue) == [1]


def test_a_commit_that_was_never_answered_and_completes_nothing_is_unknown(dsn: str, queue: Driver) -> None:
    seen: list[BaseException] = []
    with Faultline(dsn, host=Host(faults=CutAt("after_commit_committed"))) as app:

        @app.task(max_attempts=1)
        async def pay(job: Job) -> None:
            engine = create_async_engine(app.url, poolclass=NullPool)
            try:
                async with AsyncSession(engine) as session, job.transaction(session):
                    await session.execute(text("insert into paid values (1) on conflict do nothing"))
            except OutcomeUnknown as error:
                seen.append(error)

        results(app, [pay.enqueue()])
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["session on psycopg", "session on psycopg2"])
def test_an_attempt_that_is_over_is_cut_off_from_its_session(app: Faultline, queue: Driver, kind: str) -> None:
    runs: list[int] = []

    @app.task(timeout=0.5, max_attempts=2, backoff=lambda _: 0)
    def pay(job: BlockingJob) -> None:
        runs.append(1)
        with BLOCKING[kind](app) as own, job.transaction(own.session) as tx:
            own.execute(f"insert into paid values ({len(runs)})")
            if len(runs) == 1:
                own.execute("select pg_sleep(60)")
            tx.complete("paid")

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert paid(queue) == [2]


def test_an_async_attempt_that_is_over_is_cut_off_from_its_session(app: Faultline, queue: Driver) -> None:
    runs: list[int] = []

    @app.task(timeout=0.5, max_attempts=2, backoff=lambda _: 0)
    async def pay(job: Job) -> None:
        runs.append(1)
        engine = create_async_engine(app.url, poolclass=NullPool)
        async with AsyncSession(engine) as session, job.transaction(session) as tx:
            await session.execute(text(f"insert into paid values ({len(runs)})"))
            if len(runs) == 1:
                await session.execute(text("select pg_sleep(60)"))
            tx.complete("paid")

    assert results(app, [pay.enqueue()]) == ["paid"]
    assert paid(queue) == [2]


def test_a_frozen_task_does_not_hold_its_job_for_ever(app: Faultline, queue: Driver) -> None:
    @app.task(max_attempts=1)
    def look(job: BlockingJob, limit: str) -> str:
        options = {"options": f"-c idle_in_transaction_session_timeout={limit}"}
        with Session(create_engine(app.url, poolclass=NullPool, connect_args=options)) as session:
            with job.transaction(session):
                inside = session.scalar(text("show idle_in_transaction_session_timeout"))
            return f"{inside} {session.scalar(text('show idle_in_transaction_session_timeout'))}"

    found = results(app, [look.enqueue(limit) for limit in ("0", "1h", "5s")])

    assert found == ["1min 0", "1min 1h", "5s 5s"]


def test_a_block_of_the_program_around_the_jobs_transaction_is_left_quietly(app: Faultline, queue: Driver) -> None:
    """As `sessions.begin()` makes it: its own commit at the end finds nothing to do."""
    engine, async_engine = create_engine(app.url, poolclass=NullPool), create_async_engine(app.url, poolclass=NullPool)

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with sessionmaker(engine).begin() as session, job.transaction(session) as tx:
            session.add(Paid(n=1))
            tx.complete("paid")

    @app.task(max_attempts=1)
    async def apay(job: Job) -> None:
        async with async_sessionmaker(async_engine).begin() as session, job.transaction(session) as tx:
            session.add(Paid(n=2))
            tx.complete("paid")

    @app.task(max_attempts=1)
    def connected(job: BlockingJob) -> None:
        with engine.begin() as connection, job.transaction(connection) as tx:
            connection.execute(text("insert into paid values (3)"))
            tx.complete("paid")

    assert results(app, [pay.enqueue(), apay.enqueue(), connected.enqueue()]) == ["paid"] * 3
    assert paid(queue) == [1, 2, 3]


def test_sessions_that_cannot_carry_a_jobs_transaction_are_refused(app: Faultline, queue: Driver) -> None:
    engine = create_engine(app.url, poolclass=NullPool)

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with engine.connect() as outer, Session(outer) as bound, Session(engine) as nested:
            outer.begin()
            nested.begin_nested()
            alone = Session(engine.execution_options(isolation_level="AUTOCOMMIT"))
            plain = psycopg.connect(app.dsn)
            for session, why in (
                (bound, "its commit would commit nothing"),
                (nested, "inside a savepoint"),
                (Session(engine, twophase=True), "two-phase"),
                (alone, "AUTOCOMMIT"),
                (plain, "gives you a psycopg connection"),
                (engine, "cannot be joined"),
            ):
                with pytest.raises(ConfigError, match=why), job.transaction(session):  # type: ignore[arg-type]
                    pytest.fail("it was entered")
            plain.close()
        with Session(engine) as session, job.transaction(session) as tx:
            tx.complete("in the end")

    assert results(app, [pay.enqueue()]) == ["in the end"]


def test_a_job_enqueued_through_the_jobs_transaction_commits_with_it(app: Faultline, queue: Driver) -> None:
    @app.task
    def child() -> None: ...

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        with Session(create_engine(app.url, poolclass=NullPool)) as session, job.transaction(session) as tx:
            handle = child.using(tx).enqueue()
            child.using(session).enqueue()
            tx.complete(str(handle.id))

    (child_id,) = results(app, [pay.enqueue()])

    assert app.job(child_id).task == "child"


def test_a_blocking_session_in_an_async_task_is_refused(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        with Session(create_engine(app.url, poolclass=NullPool)) as session:
            async with job.transaction(session):
                pass

    (error,) = results(app, [pay.enqueue()])

    assert "is blocking" in str(error)


def end_other_sessions(queue: Driver) -> None:
    queue.connection.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )


@EACH
def test_a_session_whose_connection_has_died_begins_again_on_another(app: Faultline, queue: Driver, kind: str) -> None:
    runs = []

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        runs.append(1)
        with BLOCKING[kind](app) as own:
            own.execute("select 1")
            own.commit()
            if len(runs) == 1:
                end_other_sessions(queue)
            with job.transaction(own.session) as tx:
                own.execute("insert into paid values (1)")
                tx.complete("paid")

    handle = pay.enqueue()

    assert results(app, [handle]) == ["paid"]
    assert (paid(queue), len(runs)) == ([1], 1)


@EACH_ASYNC
def test_an_async_session_whose_connection_has_died_begins_again_on_another(
    app: Faultline, queue: Driver, kind: str
) -> None:
    runs = []

    @app.task(max_attempts=1)
    async def pay(job: Job) -> None:
        runs.append(1)
        async with ASYNC[kind](app) as own:
            await own.execute("select 1")
            await own.commit()
            if len(runs) == 1:
                end_other_sessions(queue)
            async with job.transaction(own.session) as tx:
                await own.execute("insert into paid values (1)")
                tx.complete("paid")

    handle = pay.enqueue()

    assert results(app, [handle]) == ["paid"]
    assert (paid(queue), len(runs)) == ([1], 1)


def test_what_the_task_wrote_before_is_not_lost_silently_with_its_connection(app: Faultline, queue: Driver) -> None:
    runs = []

    @app.task(max_attempts=1)
    def pay(job: BlockingJob) -> None:
        runs.append(1)
        with BLOCKING["session on psycopg"](app) as own:
            own.execute("insert into paid values (1)")
            if len(runs) == 1:
                end_other_sessions(queue)
            with job.transaction(own.session) as tx:
                own.execute("insert into paid values (2)")
                tx.complete("paid")

    handle = pay.enqueue()

    assert results(app, [handle]) == ["paid"]
    assert (paid(queue), len(runs)) == ([1, 2], 2)
