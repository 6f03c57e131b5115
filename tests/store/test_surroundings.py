"""Legal settings of a server, a database, a login or an environment change nothing of what our sessions do and read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from faultline import Faultline
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.heartbeat_session import WorkerSession
from faultline.store.database import Database
from faultline.store.install import migrate
from faultline.store.reads import views
from tests.cli.commands import faultline
from tests.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Servers

#: Each is legal, and each has stopped or slowed something once.
ODD = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "quote_all_identifiers": "on",
    "jit": "on",
    "jit_above_cost": "0",
    "idle_session_timeout": "1s",
    "default_transaction_isolation": "serializable",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "timezone": "Asia/Kathmandu",
}
OURS = "select name, setting from pg_settings where name = any (%s)"


@pytest.fixture
def odd_dsn(dsn: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, value in ODD.items():
            change = sql.SQL("alter database {} set {} = {}")
            connection.execute(
                change.format(sql.Identifier(connection.info.dbname), sql.Identifier(name), sql.Literal(value))
            )
    return dsn


def test_every_kind_of_session_is_set_to_what_we_need(odd_dsn: str) -> None:
    async def by_async() -> list[tuple[Any, ...]]:
        database = AsyncDatabase(odd_dsn)
        async with database.connection() as connection:
            cursor = await connection.execute(OURS, (["jit", "DateStyle", "quote_all_identifiers", "idle_session_timeout"],))
            found = await cursor.fetchall()
        await database.close()
        return found

    asked = (["jit", "DateStyle", "quote_all_identifiers", "idle_session_timeout"],)
    with contextlib.closing(Database(odd_dsn)) as database:
        with database.connection() as borrowed:
            of_pool = borrowed.execute(OURS, asked).fetchall()
        with database.connection() as again:  # it has been made as new
            of_cleaned = again.execute(OURS, asked).fetchall()
        with database.connect() as own:
            of_own = own.execute(OURS, asked).fetchall()
    beating = WorkerSession(odd_dsn, lock="w1")
    of_heartbeat = beating.connect().execute(OURS, asked).fetchall()
    beating.close()

    wanted = {"jit": "off", "DateStyle": "ISO, YMD", "quote_all_identifiers": "off", "idle_session_timeout": "0"}
    for found in (of_pool, of_cleaned, of_own, of_heartbeat, asyncio.run(by_async())):
        assert dict(found) == wanted


def test_jobs_are_made_run_and_shown_whatever_the_database_is_set_to(odd_dsn: str) -> None:
    app = Faultline(odd_dsn)

    @app.task
    async def halve(number: float) -> float:
        return number / 2

    async def story() -> float:
        async with asyncio.timeout(90), app.worker({"default": 2}):
            handle = await halve.aenqueue(1.1)
            found = await handle.aresult(timeout=60)
        await app.aclose()
        return found

    assert asyncio.run(story()) == 0.55
    shown = json.loads(faultline("jobs", "--json", FAULTLINE_DSN=odd_dsn).stdout)
    assert (shown["task"], shown["state"]) == ("halve", "succeeded")


def test_the_doctor_finds_an_untouched_database_as_sound_as_ever_whatever_it_is_set_to(odd_dsn: str) -> None:
    judged = faultline("doctor", FAULTLINE_DSN=odd_dsn)

    wrong = [line.split()[1] for line in judged.stdout.splitlines() if line.startswith("wrong")]
    assert wrong in ([], ["fsync"]), judged.stdout  # this server is for tests
    assert "up to date" in faultline("migrate", FAULTLINE_DSN=odd_dsn).stdout


@pytest.fixture
def ascii_dsn(servers: Servers, server: str) -> Iterator[str]:
    """A database of bytes, as initdb makes it where no locale is set."""
    template = servers.template(server)
    name = "faultline_test_ascii"
    with psycopg.connect(template, dbname="postgres", autocommit=True) as admin:
        admin.execute(f"drop database if exists {name} with (force)".encode())
        admin.execute(f"create database {name} template template0 encoding 'SQL_ASCII' locale 'C'".encode())
        yield f"{template} dbname={name}"
        admin.execute(f"drop database {name} with (force)".encode())


def test_a_database_of_bytes_is_migrated_and_keeps_what_it_was_given(ascii_dsn: str) -> None:
    with Database(ascii_dsn).connect() as connection:
        migrate.migrate(connection)
        queue = Driver(connection)

        job_id = queue.enqueue("t", {"name": "Ærø"})
        found = queue.run(views.job(job_id))

    assert found is not None
    assert found.args == {"name": "Ærø"}
