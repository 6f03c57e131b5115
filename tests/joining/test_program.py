"""A program operates its queue without a command line: DSNs that change, migrations, lists, Alembic."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from alembic.autogenerate import produce_migrations
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations.ops import DropTableOp
from alembic.runtime.environment import EnvironmentContext
from psycopg.conninfo import make_conninfo
from sqlalchemy import MetaData, create_engine, make_url, text
from sqlalchemy.pool import NullPool

import faultline
from faultline import ConfigError, DatabaseUnavailable, Faultline, JobRejected
from faultline.integrations.alembic import TABLES, include_name
from tests.worker.working import work

if TYPE_CHECKING:
    from tests.conftest import NewLogin
    from tests.driver import Driver


def test_a_dsn_that_a_function_gives_is_asked_for_with_each_connection(dsn: str, new_login: NewLogin, queue: Driver) -> None:
    """A password that is changed is not noticed by sessions that are open, and the next ones need the new one."""
    logins = [new_login("in role faultline_worker") for _ in range(2)]
    asked: list[str] = []

    def given() -> str:
        asked.append(logins[0])
        return make_conninfo(dsn, user=logins[0])

    with Faultline(given) as app:

        @app.task
        def who() -> str:
            return str(app.database.run(_who()))

        first = app.database.run(_who())
        logins.reverse()
        app.database.close()
        second = app.database.run(_who())

        async def story() -> Any:
            return await who.enqueue().aresult(30)

        in_worker = work(app, story)

        assert (first, second, in_worker) == (asked[0], asked[-1], asked[-1])
        assert first != second
        assert asked[-1] in app.url


def _who() -> Any:
    from faultline.store.rows import value  # noqa: PLC0415
    from faultline.store.statement import Statement  # noqa: PLC0415

    return Statement("who", "select current_user::text", (), value, reads=True)


def test_a_function_that_gives_no_dsn_is_refused(dsn: str) -> None:
    async def later() -> str:
        return dsn

    for wrong, why in ((lambda: None, "returned a NoneType"), (later, "is async")):
        with pytest.raises(ConfigError, match=why):
            _ = Faultline(wrong).dsn  # type: ignore[arg-type]


def test_a_function_that_fails_is_as_a_server_that_cannot_be_reached(dsn: str) -> None:
    answers: list[str | None] = [dsn, None]

    def given() -> str:
        found = answers.pop(0) if answers else None
        if found is None:
            raise RuntimeError("the vault is sealed")
        return found

    with Faultline(given, timeout=0.3) as app:
        with pytest.raises(DatabaseUnavailable, match="the vault is sealed"):
            app.job("0198c2e4-5d3a-7b11-9f60-2a54c0de7f01")
        with pytest.raises(DatabaseUnavailable, match="the vault is sealed"):
            asyncio.run(app.ajob("0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"))


def test_a_program_migrates_its_database(empty_dsn: str) -> None:
    assert faultline.migrate(empty_dsn)
    assert faultline.migrate(lambda: empty_dsn) == []


def test_a_program_lists_its_jobs(app: Faultline) -> None:
    app.enqueue("one", queue="mail")
    second = app.enqueue("two", queue="mail", group="g", idempotency_key="k")
    app.cancel(second.id)

    async def listed() -> list[str]:
        found = [job.task for job in await app.ajobs(state="cancelled")]
        await app.async_database.close()
        return found

    assert [job.task for job in app.jobs()] == ["two", "one"]
    assert [job.task for job in app.jobs(state="queued", queue="mail")] == ["one"]
    assert [job.task for job in app.jobs(task="two")] == ["two"]
    assert [job.id for job in app.jobs(idempotency_key="k")] == [second.id]
    assert [job.id for job in app.jobs(group="g")] == [second.id]
    assert app.jobs(created_after=datetime.now(UTC) + timedelta(days=1)) == []
    assert len(app.jobs(limit=1)) == 1
    assert asyncio.run(listed()) == ["two"]
    with pytest.raises(JobRejected, match="the states are queued"):
        app.jobs(state="done")
    with pytest.raises(JobRejected, match="from 1 to 1000"):
        app.jobs(limit=0)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://user:p%40ss%2Fw@host:5433/db?sslmode=require&options=-c%20jit%3Doff",
        "host=/run/postgresql port=5433 dbname=my-db user='o\\'brien'",
        "host=a,b port=1,2 dbname=x target_session_attrs=read-write",
        "dbname=x",
    ],
)
def test_the_url_says_the_same_to_sqlalchemy(given: str) -> None:
    made = create_engine(Faultline(given).url)

    args, words = made.dialect.create_connect_args(make_url(Faultline(given).url))

    said = psycopg.conninfo.conninfo_to_dict(given)
    ours = psycopg.conninfo.conninfo_to_dict(*args, **{name: str(one) for name, one in words.items() if name in said})
    assert ours == {name: str(one) for name, one in said.items()}


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # of what it must not touch
def test_alembic_leaves_our_schema_alone(app: Faultline) -> None:
    # PostgreSQL looks into the schema named as the login first, and the tests' login is named as ours.
    options = {"options": "-c search_path=public"}
    engine = create_engine(app.url, poolclass=NullPool, connect_args=options)
    with engine.begin() as connection:
        connection.execute(text("create table own (n integer)"))

        def generated(**options: Any) -> list[Any]:
            context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
            operations = produce_migrations(context, MetaData()).upgrade_ops
            assert operations is not None
            return [getattr(one, "table_name", one) for one in operations.ops]

        assert len(generated()) > 1
        assert generated(include_name=include_name) == ["own"]


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("path", ["faultline,public", "public,faultline", "public"])
def test_alembic_leaves_our_tables_alone_wherever_their_schema_stands_in_the_search_path(app: Faultline, path: str) -> None:
    options = {"options": f"-c search_path={path}"}
    engine = create_engine(app.url, poolclass=NullPool, connect_args=options)
    found: list[Any] = []
    with engine.begin() as connection:
        connection.execute(text("create table faultline.own (n integer primary key, m integer unique)"))
        connection.execute(text("create table public.groups (n integer)"))

        with EnvironmentContext(Config(), cast("Any", None)) as environment:
            environment.configure(connection=connection, include_schemas=True, include_name=include_name)
            operations = produce_migrations(environment.get_context(), MetaData()).upgrade_ops
            assert operations is not None
            found = [(one.schema, one.table_name) for one in operations.ops if isinstance(one, DropTableOp)]
        ours = "select tablename from pg_tables where schemaname = 'faultline' and tablename <> 'own'"
        tables = set(connection.execute(text(ours)).scalars())
        connection.rollback()

    # What Alembic itself leaves out without being told: tables of a schema that the path has, behind the first.
    expected = {
        "faultline,public": [("public", "groups"), (None, "own")],
        "public,faultline": [(None, "groups"), (None, "own")],
        "public": [(None, "groups")],
    }
    assert sorted(found, key=str) == expected[path]
    assert tables == TABLES
