from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline import embedded
from faultline.core import errors
from faultline.store import migrate
from faultline.store.database import Database
from tests.conftest import FOLDER, SETTINGS, clone
from tests.driver import Sessions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Servers


@pytest.fixture
def connection(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as opened:
        yield opened


def test_migrating_twice_does_it_once(connection: psycopg.Connection) -> None:
    assert migrate.migrate(connection) == ["0001_tables", "0002_service", "definitions"]
    assert migrate.migrate(connection) == []


def test_migrating_from_four_places_at_once_does_it_once(empty_dsn: str) -> None:
    def run(_: int) -> list[str]:
        with psycopg.connect(empty_dsn, autocommit=True) as own:
            return migrate.migrate(own)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(run, range(4)))

    assert sorted(map(len, answers)) == [0, 0, 0, 3]


def test_migrating_two_databases_of_one_cluster_at_once_makes_the_roles_once(servers: Servers, server: str) -> None:
    """Roles belong to the cluster. Both transactions see none, both create them, one comes second."""
    template = servers.template(server)
    with clone(template, empty=True) as one, clone(template, empty=True) as two:

        def run(dsn: str) -> list[str]:
            with psycopg.connect(dsn, autocommit=True) as own:
                return migrate.migrate(own)

        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(run, [one, two]))

    assert [len(answer) for answer in answers] == [3, 3]


def test_roles_that_another_database_is_just_creating_are_waited_for() -> None:
    """On a server of its own, since the roles must not be there yet."""
    with embedded.join(FOLDER / "roles", settings=SETTINGS) as fresh, Sessions(fresh.dsn) as sessions:
        other, own = sessions.open(), sessions.open()
        other.begin()
        other.connection.execute("create role faultline_worker nologin")
        answer = own.start(lambda driver: migrate.migrate(driver.connection))
        sessions.wait_until_blocked(own, answer)
        other.commit()

        assert answer.result() == ["0001_tables", "0002_service", "definitions"]


@pytest.mark.parametrize("thing", ["table faultline.orders (n integer)", "function faultline.f() returns int return 1"])
def test_a_schema_that_is_not_ours_is_left_alone(connection: psycopg.Connection, thing: str) -> None:
    connection.execute("create schema faultline")
    connection.execute(f"create {thing}".encode())

    with pytest.raises(errors.SchemaError, match="a schema faultline that Faultline did not make"):
        migrate.migrate(connection)

    count = "select (select count(*) from pg_tables where schemaname = 'faultline') + count(*) from pg_proc"
    assert connection.execute(f"{count} where pronamespace = 'faultline'::regnamespace".encode()).fetchone() == (1,)


def test_a_schema_that_somebody_else_made_does_not_get_our_rights(connection: psycopg.Connection, empty_dsn: str) -> None:
    """A trigger on its migrations table would run as whoever migrates."""
    connection.execute("create role mallory_of_the_test login")
    try:
        connection.execute(f'grant create on database "{connection.info.dbname}" to mallory_of_the_test'.encode())
        with psycopg.connect(empty_dsn, user="mallory_of_the_test", autocommit=True) as mallory:
            mallory.execute("create schema faultline")

        with pytest.raises(errors.SchemaError, match="belongs to mallory_of_the_test"):
            migrate.migrate(connection)
    finally:
        connection.execute("drop owned by mallory_of_the_test cascade")
        connection.execute("drop role mallory_of_the_test")


@pytest.mark.parametrize("setting", ["isolation = 'serializable'", "read_only = on"])
def test_a_databases_defaults_do_not_get_in_the_way(connection: psycopg.Connection, empty_dsn: str, setting: str) -> None:
    connection.execute(f'alter database "{connection.info.dbname}" set default_transaction_{setting}'.encode())

    test_migrating_from_four_places_at_once_does_it_once(empty_dsn)


def test_changed_functions_are_replaced(connection: psycopg.Connection) -> None:
    migrate.migrate(connection)
    connection.execute("drop function faultline.reap")
    connection.execute("create function faultline.reap(nonsense text) returns text language sql return 'old'")
    connection.execute("update faultline.migrations set checksum = 'another build' where number = 0")

    assert migrate.migrate(connection) == ["definitions"]

    assert connection.execute("select count(*) from faultline.reap()").fetchone() == (0,)
    assert connection.execute("select count(*) from pg_proc where proname = 'reap'").fetchone() == (1,)


def test_replacing_functions_keeps_jobs_and_grants(connection: psycopg.Connection) -> None:
    migrate.migrate(connection)
    connection.execute("select faultline.enqueue('t')")
    connection.execute("update faultline.migrations set checksum = 'another build' where number = 0")

    migrate.migrate(connection)

    connection.execute("set role faultline_producer")
    connection.execute("select faultline.enqueue('t')")
    assert connection.execute("select count(*) from faultline.jobs").fetchone() == (2,)


def test_the_schema_works_without_the_right_to_create_roles(connection: psycopg.Connection, empty_dsn: str) -> None:
    connection.execute("create role owner_of_the_test login")
    try:
        database = connection.info.dbname
        connection.execute(f'grant create on database "{database}" to owner_of_the_test'.encode())
        with psycopg.connect(empty_dsn, user="owner_of_the_test", autocommit=True) as own:
            migrate.migrate(own)
            own.execute("select faultline.enqueue('t')")
            assert own.execute("select count(*) from faultline.claim('default', 'w/1', 1)").fetchone() == (1,)
    finally:
        connection.execute("drop owned by owner_of_the_test cascade")
        connection.execute("drop role owner_of_the_test")


def test_a_clients_search_path_does_not_change_what_the_files_mean(connection: psycopg.Connection) -> None:
    connection.execute("create schema trap")
    connection.execute(
        "create function trap.statement_timestamp() returns timestamptz language sql return '2100-01-01'::timestamptz"
    )
    connection.execute("set search_path = trap, pg_catalog")

    migrate.migrate(connection)

    assert connection.execute("select faultline.now() < '2099-01-01'").fetchone() == (True,)


# A database that does not fit the build


def test_a_database_without_the_schema_says_so(empty_dsn: str) -> None:
    with pytest.raises(errors.SchemaMissing, match="run: faultline migrate"):
        Database(empty_dsn).facts()


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        ("update faultline.migrations set number = 99 where number = 2", errors.SchemaAhead, "at schema 99.*knows only 2"),
        ("delete from faultline.migrations where number = 2", errors.SchemaBehind, "at schema 1, this build needs 2"),
        ("delete from faultline.migrations", errors.SchemaBehind, "run: faultline migrate"),
        ("update faultline.migrations set checksum = 'x' where number = 1", errors.SchemaAltered, "another text"),
        (
            "update faultline.migrations set checksum = 'x' where number = 0",
            errors.SchemaBehind,
            "functions of another build",
        ),
    ],
)
def test_a_database_of_another_build_says_so(dsn: str, damage: str, error: type[Exception], message: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(damage.encode())

    with pytest.raises(error, match=message):
        Database(dsn).facts()


def test_a_database_that_is_ahead_is_not_migrated_backwards(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update faultline.migrations set number = 99 where number = 1")

        with pytest.raises(errors.SchemaAhead):
            migrate.migrate(connection)


def test_every_function_of_the_protocol_is_pinned_to_a_search_path_if_it_runs_as_its_owner(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        loose = connection.execute(
            "select proname from pg_proc where pronamespace = 'faultline'::regnamespace and prosecdef"
            " and not coalesce(proconfig, '{}') @> '{\"search_path=pg_catalog, pg_temp\"}'"
        ).fetchall()

    assert loose == []
