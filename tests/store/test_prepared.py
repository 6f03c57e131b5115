"""Statements that are sent often are prepared where the session is ours. What was prepared may be gone: nobody notices."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.deadline import Deadline
from faultline.store.database import Database
from faultline.store.reads import views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.store.statement import Statement

OFTEN = 5
PREPARED = "select statement from pg_prepared_statements where not from_sql"


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    with contextlib.closing(Database(dsn, connections_max=1)) as opened:
        yield opened


def session(database: Database) -> contextlib.AbstractContextManager[psycopg.Connection]:
    """The session as it is. One that is borrowed comes back as new."""
    return database._open_pool().connection(Deadline())  # noqa: SLF001


def prepared(database: Database) -> list[str]:
    with session(database) as connection:
        return [row[0] for row in connection.execute(PREPARED, prepare=False).fetchall()]


def enqueue(database: Database, ids: Ids, times: int = 1) -> None:
    for _ in range(times):
        database.run(verbs.enqueue_many([Submission("t")], ids))


def test_what_is_sent_often_is_prepared_and_what_is_asked_now_and_then_is_not(database: Database) -> None:
    enqueue(database, Ids(), OFTEN)
    for _ in range(OFTEN):
        database.run(views.job(Ids().new()))

    (only,) = prepared(database)

    assert "enqueue_one" in only


def forget(connection: psycopg.Connection) -> None:
    # Behind psycopg's back, as a pooler does that gives the session's next transaction to another one.
    connection.pgconn.exec_(b"deallocate all")


def take_the_names(connection: psycopg.Connection) -> None:
    forget(connection)
    for number in range(10):
        connection.pgconn.exec_(b"prepare _pg3_%d as select 1" % number)


@pytest.mark.parametrize(("lose", "before"), [(forget, OFTEN), (take_the_names, 1)])
def test_a_session_that_was_not_ours_alone_is_noticed_and_nothing_is_prepared_any_more(
    database: Database, lose: Callable[[psycopg.Connection], None], before: int
) -> None:
    ids = Ids()
    enqueue(database, ids, before)
    with session(database) as connection:
        lose(connection)

    enqueue(database, ids, OFTEN)

    with session(database) as connection:
        found = connection.execute("select count(*) from faultline.open_jobs", prepare=False).fetchone()
    assert found == (before + OFTEN,)
    assert prepared(database) == []


def test_what_others_send_through_a_borrowed_connection_is_not_prepared(database: Database) -> None:
    for number in range(2 * OFTEN):
        with database.connection() as connection, connection.transaction():
            connection.execute(f"create temp table t (a int, b{number} int) on commit drop".encode())
            connection.execute("select * from t")

    enqueue(database, Ids(), OFTEN)

    assert ["enqueue_one" in one for one in prepared(database)] == [True]


def test_a_session_that_was_in_use_when_another_lost_its_statements_uses_none_either(dsn: str) -> None:
    statement = counted(dsn)
    with contextlib.closing(Database(dsn, connections_max=2)) as database:
        with session(database):
            for _ in range(OFTEN):
                database.run(statement)  # on the other one
        for _ in range(OFTEN):
            database.run(statement)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("alter table counted alter n type text")
        with session(database) as held:
            assert database.run(statement) == "1"
        assert database.run(statement) == "1"
        with session(database) as last_used:
            assert last_used is held  # it did not fail, and was not given up


def counted(dsn: str) -> Statement[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table counted (n integer); insert into counted values (1)")
    return replace(verbs.claimed_by("w/1"), sql="select n from counted", params=(), read=lambda rows: rows[0][0], often=True)


def test_a_result_whose_type_has_changed_is_asked_for_anew(database: Database, dsn: str) -> None:
    statement = counted(dsn)
    for _ in range(OFTEN):
        database.run(statement)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("alter table counted alter n type text")

    assert database.run(statement) == "1"


def test_the_same_holds_for_async_programs(dsn: str) -> None:
    statement = counted(dsn)

    async def story() -> tuple[int, object, int]:
        database = AsyncDatabase(dsn, connections_max=1)
        for _ in range(OFTEN):
            await database.run(statement)
        before = await count(database)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("alter table counted alter n type text")
        answers = [await database.run(statement) for _ in range(OFTEN)]
        after = await count(database)
        await database.close()
        return before, answers[-1], after

    async def count(database: AsyncDatabase) -> int:
        async with database._open_pool().connection(Deadline()) as connection:  # noqa: SLF001
            return len(await (await connection.execute(PREPARED, prepare=False)).fetchall())

    assert asyncio.run(story()) == (1, "1", 0)
