"""A job joins the caller's transaction, whatever library has opened it: it exists once that commits, or never."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from faultline import ConfigError, Faultline, JobRejected, JobState, KeyConflict, PermissionDenied, SchemaMissing, Task
from faultline.core.ids import Ids
from tests.joining.sessions import ASYNC, BLOCKING

if TYPE_CHECKING:
    from tests.conftest import NewLogin

EACH = pytest.mark.parametrize("kind", BLOCKING)
EACH_ASYNC = pytest.mark.parametrize("kind", ASYNC)


@pytest.fixture
def charge(app: Faultline) -> Task[[int], None]:
    @app.task
    def charge(order_id: int, note: str = "") -> None: ...

    return charge


def count(app: Faultline) -> int:
    with app.database.connect() as connection:
        ((found,),) = connection.execute("select count(*) from faultline.jobs").fetchall()
        return int(found)


@EACH
def test_a_job_joins_a_blocking_transaction(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    with BLOCKING[kind](app) as own:
        charge.using(own.session).enqueue(1)
        own.rollback()
        assert count(app) == 0

        handle = charge.using(own.session).enqueue(2)
        assert count(app) == 0
        own.commit()

    assert handle.created
    assert app.job(handle.id).args == {"order_id": 2}


@EACH_ASYNC
def test_a_job_joins_an_async_transaction(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    async def story() -> Any:
        async with ASYNC[kind](app) as own:
            await charge.using(own.session).aenqueue(1)
            await own.rollback()
            assert count(app) == 0

            handle = await charge.using(own.session).aenqueue(2)
            assert count(app) == 0
            await own.commit()
            return handle

    handle = asyncio.run(story())

    assert handle.created
    assert app.job(handle.id).args == {"order_id": 2}


@EACH
def test_all_that_is_enqueued_can_join_a_blocking_transaction(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    app.on("order.paid")(charge)
    app.declare()
    waiting = charge.options(idempotency_key="first").enqueue(1)
    flow = app.flow()
    flow.add(charge, 5, after=[flow.add(charge, 4)])
    job_id = Ids().new()
    text = "it's \\ 100% ünïcode"

    with BLOCKING[kind](app) as own:
        joined = app.using(own.session)
        many = joined.enqueue_many([charge.bind(2), charge.options(idempotency_key="first").bind(1)])
        named = joined.enqueue("charge", {"order_id": 3, "note": text}, queue="other", id=job_id)
        graph = flow.using(own.session).enqueue(idempotency_key="graph")
        (published,) = joined.publish("order.paid", {"order_id": 6})
        signalled = joined.signal(waiting.id, "go", {"text": text})
        own.commit()

    assert [handle.created for handle in many] == [True, False]
    assert many[1].id == waiting.id
    assert (named.id, app.job(job_id).args) == (job_id, {"order_id": 3, "note": text})
    assert app.job(graph.jobs["charge 2"].id).args == {"order_id": 5}
    assert app.job(published.id).args == {"order_id": 6}
    assert signalled


@EACH_ASYNC
def test_all_that_is_enqueued_can_join_an_async_transaction(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    app.on("order.paid")(charge)
    app.declare()
    waiting = charge.options(idempotency_key="first").enqueue(1)
    flow = app.flow()
    flow.add(charge, 5, after=[flow.add(charge, 4)])
    text = "it's \\ 100% ünïcode"

    async def story() -> Any:
        async with ASYNC[kind](app) as own:
            joined = app.using(own.session)
            many = await joined.aenqueue_many([charge.bind(2), charge.options(idempotency_key="first").bind(1)])
            named = await joined.aenqueue("charge", {"order_id": 3, "note": text}, queue="other")
            graph = await flow.using(own.session).aenqueue(idempotency_key="graph")
            (published,) = await joined.apublish("order.paid", {"order_id": 6})
            signalled = await joined.asignal(waiting.id, "go", {"text": text})
            await own.commit()
            return many, named, graph, published, signalled

    many, named, graph, published, signalled = asyncio.run(story())

    assert [handle.created for handle in many] == [True, False]
    assert many[1].id == waiting.id
    assert app.job(named.id).args == {"order_id": 3, "note": text}
    assert app.job(graph.jobs["charge 2"].id).args == {"order_id": 5}
    assert app.job(published.id).args == {"order_id": 6}
    assert signalled


@EACH
def test_a_refusal_of_the_database_is_our_own_error(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    charge.options(idempotency_key="k").enqueue(1)

    with BLOCKING[kind](app) as own, pytest.raises(KeyConflict, match="k"):
        charge.options(idempotency_key="k").using(own.session).enqueue(2)


@EACH_ASYNC
def test_a_refusal_of_the_database_is_our_own_error_in_async_sessions(
    app: Faultline, charge: Task[[int], None], kind: str
) -> None:
    charge.options(idempotency_key="k").enqueue(1)

    async def story() -> None:
        async with ASYNC[kind](app) as own:
            with pytest.raises(KeyConflict, match="k"):
                await charge.options(idempotency_key="k").using(own.session).aenqueue(2)
            await own.rollback()

    asyncio.run(story())


# What the caller's session is like


@EACH
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_job_joins_at_any_isolation_level(app: Faultline, charge: Task[[int], None], kind: str, level: str) -> None:
    with BLOCKING[kind](app) as own:
        own.execute(f"set transaction isolation level {level}")
        handle = charge.options(idempotency_key="k").using(own.session).enqueue(1)
        own.commit()

    assert app.job(handle.id).state is JobState.QUEUED


@EACH
def test_a_session_with_other_settings_is_joined_durably(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    with BLOCKING[kind](app) as own:
        own.execute("set synchronous_commit = off")
        own.execute("set search_path = pg_temp")
        own.execute("set standard_conforming_strings = off")
        own.execute("set datestyle = 'SQL, DMY'")
        handle = charge.using(own.session).enqueue(1)
        # Lives as long as the transaction: the job is on disk once it commits.
        own.execute("do $$ begin assert current_setting('synchronous_commit') = 'on'; end $$")
        own.commit()

    assert app.job(handle.id).state is JobState.QUEUED


@EACH
def test_a_savepoint_takes_its_jobs_back(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    with BLOCKING[kind](app) as own:
        kept = charge.using(own.session).enqueue(1)
        own.execute("savepoint here")
        charge.using(own.session).enqueue(2)
        own.execute("rollback to savepoint here")
        own.commit()

    assert count(app) == 1
    assert app.job(kept.id).state is JobState.QUEUED


def test_an_orm_savepoint_takes_its_jobs_back(app: Faultline, charge: Task[[int], None]) -> None:
    with Session(create_engine(app.url, poolclass=NullPool)) as session:
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            charge.using(session).enqueue(1)
            raise ZeroDivisionError
        charge.using(session).enqueue(2)
        session.commit()

    assert count(app) == 1


@EACH
def test_a_login_without_rights_is_told_so(
    app: Faultline, charge: Task[[int], None], kind: str, new_login: NewLogin
) -> None:
    stranger = Faultline(make_conninfo(app.dsn, user=new_login("")))

    with BLOCKING[kind](stranger) as own, pytest.raises(PermissionDenied):
        charge.using(own.session).enqueue(1)


@EACH
def test_a_database_without_the_schema_is_named(
    empty_dsn: str, app: Faultline, charge: Task[[int], None], kind: str
) -> None:
    with BLOCKING[kind](Faultline(empty_dsn)) as own, pytest.raises(SchemaMissing, match="faultline migrate"):
        charge.using(own.session).enqueue(1)


# What cannot be joined


def test_what_is_no_session_is_refused_at_once(app: Faultline, charge: Task[[int], None]) -> None:
    engine = create_engine(app.url)
    with psycopg.connect(app.dsn) as connection:
        wrong: dict[Any, str] = {
            None: "leave out using",
            "postgresql://user:secret@host/db": "a str cannot be joined",
            42: "an int cannot be joined",
            engine: "with engine.begin",
            sessionmaker(engine): "with engine.begin",
            connection.cursor(): "Give the cursor's connection",
        }

        for given, advice in wrong.items():
            with pytest.raises(ConfigError, match=advice) as refused:
                charge.using(given)
            assert "secret" not in str(refused.value)


@EACH
def test_a_blocking_session_in_async_code_is_refused(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    with BLOCKING[kind](app) as own, pytest.raises(ConfigError, match="is blocking"):
        asyncio.run(charge.using(own.session).aenqueue(1))


@EACH_ASYNC
def test_an_async_session_in_blocking_code_is_refused(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    async def story() -> None:
        async with ASYNC[kind](app) as own:
            with pytest.raises(ConfigError, match="is async"):
                charge.using(own.session).enqueue(1)

    asyncio.run(story())


CLOSED = ["psycopg", "psycopg2", "connection on psycopg", "connection on psycopg2"]
CLOSED_ASYNC = ["psycopg", "asyncpg", "connection on psycopg", "connection on asyncpg"]


@pytest.mark.parametrize("kind", CLOSED)
def test_a_closed_session_is_refused(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    with BLOCKING[kind](app) as own:
        pass

    with pytest.raises(ConfigError, match=r"closed|not connected"):
        charge.using(own.session).enqueue(1)


@pytest.mark.parametrize("kind", CLOSED_ASYNC)
def test_a_closed_async_session_is_refused(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    async def story() -> None:
        async with ASYNC[kind](app) as own:
            pass
        with pytest.raises(ConfigError, match=r"closed|not connected"):
            await charge.using(own.session).aenqueue(1)

    asyncio.run(story())


@EACH
def test_a_failed_transaction_is_not_joined(app: Faultline, charge: Task[[int], None], kind: str) -> None:
    with BLOCKING[kind](app) as own:
        with pytest.raises(Exception, match="division by zero"):
            own.execute("select 1/0")
        with pytest.raises(Exception, match="aborted"):
            charge.using(own.session).enqueue(1)
        own.rollback()
        charge.using(own.session).enqueue(2)
        own.commit()

    assert count(app) == 1


def test_many_jobs_need_a_transaction_to_be_all_or_none(app: Faultline, charge: Task[[int], None]) -> None:
    many = charge.bind_each(range(2_001))
    autocommitting = create_engine(app.url, isolation_level="AUTOCOMMIT")

    with psycopg.connect(app.dsn, autocommit=True) as alone:
        with pytest.raises(ConfigError, match="2 statements would commit by itself"):
            app.using(alone).enqueue_many(many)
        with alone.transaction():
            app.using(alone).enqueue_many(many)
    with Session(autocommitting) as session, pytest.raises(ConfigError, match="no transaction"):
        app.using(session).enqueue_many(many)

    assert count(app) == 2_001


# By name


def test_a_job_is_enqueued_by_the_name_of_a_task_that_is_elsewhere(app: Faultline) -> None:
    handle = app.enqueue("elsewhere", {"n": 1}, queue="mail", max_attempts=2)

    found = app.job(handle.id)
    assert (found.task, found.queue, found.args, found.max_attempts) == ("elsewhere", "mail", {"n": 1}, 2)


def test_a_job_by_name_of_a_task_that_is_here_is_checked(app: Faultline, charge: Task[[int], None]) -> None:
    with pytest.raises(JobRejected, match="order"):
        app.enqueue("charge", {"order": 1})
    with pytest.raises(JobRejected, match="must be a dict"):
        app.enqueue("charge", [1])  # type: ignore[arg-type]
    with pytest.raises(JobRejected, match="unknown option"):
        app.enqueue("elsewhere", {}, colour="red")  # type: ignore[call-arg]
    with pytest.raises(JobRejected, match="unique="):
        app.enqueue("elsewhere", {}, unique="queued")

    async def story() -> bool:
        handle = await app.aenqueue("charge", {"order_id": 1})
        await app.async_database.close()
        return handle.created

    assert asyncio.run(story())


def test_a_blocking_enqueue_in_an_event_loop_warns(app: Faultline, charge: Task[[int], None]) -> None:
    async def story() -> None:
        with pytest.warns(RuntimeWarning, match=r"aenqueue") as seen:
            charge.enqueue(1)
        assert seen[0].filename == __file__

    asyncio.run(story())
