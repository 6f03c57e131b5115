from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline import embedded
from faultline.core import errors
from faultline.store.database import Database, run_on
from faultline.store.install import definition_marks, migrate, replace, schema_diff
from faultline.store.install.schema_text import definition_files, meaning
from tests.conftest import FOLDER, SETTINGS, clone
from tests.driver import Sessions
from tests.versions import has_migrated, note_another_text, pretend
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Servers

OURS = migrate.protocol().version
OUR_FUNCTIONS = {definition.name for definition in definition_files() if definition.is_function} | {"refuse_change"}
EVERYTHING = [*(migration.name for migration in migrate.numbered()), "definitions"]


@pytest.fixture
def connection(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as opened:
        yield opened


def test_migrating_twice_does_it_once(connection: psycopg.Connection) -> None:
    assert migrate.migrate(connection) == EVERYTHING
    assert migrate.migrate(connection) == []


def test_the_lost_record_of_what_was_applied_comes_back(connection: psycopg.Connection) -> None:
    migrate.migrate(connection)
    before = connection.execute("select number, name, checksum from faultline.schema_files order by 1").fetchall()
    connection.execute("delete from faultline.schema_files")

    migrate.migrate(connection)

    after = connection.execute("select number, name, checksum from faultline.schema_files order by 1").fetchall()
    assert after == before
    assert migrate.migrate(connection) == []


def test_migrating_from_four_places_at_once_does_it_once(empty_dsn: str) -> None:
    def run(_: int) -> list[str]:
        with psycopg.connect(empty_dsn, autocommit=True) as own:
            return migrate.migrate(own)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(run, range(4)))

    assert sorted(map(len, answers)) == [0, 0, 0, len(EVERYTHING)]


def test_migrating_two_databases_of_one_cluster_at_once_makes_the_roles_once(servers: Servers, server: str) -> None:
    """Roles belong to the cluster. Both transactions see none, both create them, one comes second."""
    template = servers.template(server)
    with clone(template, empty=True) as one, clone(template, empty=True) as two:

        def run(dsn: str) -> list[str]:
            with psycopg.connect(dsn, autocommit=True) as own:
                return migrate.migrate(own)

        with ThreadPoolExecutor(2) as threads:
            answers = list(threads.map(run, [one, two]))

    assert answers == [EVERYTHING, EVERYTHING]


@pytest.mark.long
def test_roles_that_another_database_is_just_creating_are_waited_for() -> None:
    """On a server of its own, since the roles must not be there yet."""
    with embedded.join(FOLDER / "roles", settings=SETTINGS) as fresh, Sessions(fresh.dsn) as sessions:
        other, own = sessions.open(), sessions.open()
        other.begin()
        other.connection.execute("create role faultline_worker nologin")
        answer = own.start(lambda driver: migrate.migrate(driver.connection))
        sessions.wait_until_blocked(own, answer)
        other.commit()

        assert answer.result() == EVERYTHING


@pytest.mark.parametrize("thing", ["table faultline.orders (n integer)", "function faultline.f() returns int return 1"])
def test_a_schema_that_is_not_ours_is_left_alone(connection: psycopg.Connection, thing: str) -> None:
    connection.execute("create schema faultline")
    connection.execute(f"create {thing}".encode())

    with pytest.raises(errors.SchemaError, match="was not created by Faultline"):
        migrate.migrate(connection)

    count = "select (select count(*) from pg_tables where schemaname = 'faultline') + count(*) from pg_proc"
    assert connection.execute(f"{count} where pronamespace = 'faultline'::regnamespace".encode()).fetchone() == (1,)


def test_a_schema_that_somebody_else_made_does_not_get_our_rights(connection: psycopg.Connection, empty_dsn: str) -> None:
    """A trigger on its table of records would run as whoever migrates."""
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
    note_another_text(connection)

    assert migrate.migrate(connection) == ["definitions"]

    assert connection.execute("select count(*) from faultline.reap()").fetchone() == (0,)
    assert connection.execute("select count(*) from pg_proc where proname = 'reap'").fetchone() == (1,)


def test_replacing_functions_keeps_jobs_and_grants(connection: psycopg.Connection) -> None:
    migrate.migrate(connection)
    connection.execute("select faultline.enqueue('t')")
    note_another_text(connection)

    migrate.migrate(connection)

    connection.execute("set role faultline_producer")
    connection.execute("select faultline.enqueue('t')")
    assert connection.execute("select count(*) from faultline.jobs").fetchone() == (2,)


def test_functions_keep_their_identity(connection: psycopg.Connection) -> None:
    """A call that was parsed before the migration and runs after it finds what it was parsed for."""
    migrate.migrate(connection)
    before = functions_of(connection)
    note_another_text(connection)

    migrate.migrate(connection)

    assert functions_of(connection) == before


def test_a_call_in_flight_finds_the_helpers_of_its_own_build(dsn: str, sessions: Sessions) -> None:
    """PL/pgSQL looks helpers up by name, when it gets there: after the migration, in the text from before it."""
    connection = sessions.open().connection
    define_earlier(connection, "gone() returns text language sql return 'gone'")
    define_earlier(connection, "parse_new_jobs(old text) returns text language sql return 'of other types'")
    helpers = "faultline.gone(), faultline.parse_new_jobs('x'::text)"
    slow = f"begin perform pg_advisory_xact_lock(77); return array[{helpers}]; end"
    define_earlier(connection, f"slow() returns text[] language plpgsql as $$ {slow} $$")
    note_another_text(connection)
    waiting, caller = sessions.open(), sessions.open()
    waiting.begin()
    waiting.connection.execute("select pg_advisory_xact_lock(77)")
    call = caller.start(lambda driver: driver.connection.execute("select faultline.slow()").fetchone())
    sessions.wait_until_blocked(caller, call)

    migration = sessions.open().start(lambda driver: migrate.migrate(driver.connection))
    until(lambda: has_migrated(connection))
    assert run_on(connection, schema_diff.functions()) == []
    waiting.commit()

    assert call.result() == (["gone", "of other types"],)
    assert migration.result() == ["definitions"]
    assert names_of(connection) == OUR_FUNCTIONS
    assert connection.execute("select count(*) from pg_proc where proname = 'parse_new_jobs'").fetchone() == (1,)


def test_a_parsed_call_finds_its_function_although_the_new_one_would_fit_it_too(dsn: str, sessions: Sessions) -> None:
    """With both under one name the call would be ambiguous: the old one makes way, and the new one takes the calls."""
    connection, holder = sessions.open().connection, sessions.open()
    connection.execute("drop function faultline.reap")
    define_earlier(connection, "reap() returns text language sql return 'old'")
    note_another_text(connection)
    holder.begin()
    holder.connection.execute("prepare parsed as select faultline.reap()")
    holder.connection.execute("execute parsed")

    migration = sessions.open().start(lambda driver: migrate.migrate(driver.connection))
    until(lambda: has_migrated(connection))

    assert connection.execute("select count(*) from faultline.reap()").fetchone() == (0,)
    holder.commit()
    assert migration.result() == ["definitions"]
    assert connection.execute("select count(*) from pg_proc where proname = 'reap'").fetchone() == (1,)
    assert names_of(connection) == OUR_FUNCTIONS


def test_what_a_person_made_in_the_schema_stays(connection: psycopg.Connection) -> None:
    migrate.migrate(connection)
    connection.execute("create function faultline.my_report() returns int language sql return 1")
    connection.execute("create procedure faultline.my_work() language sql as 'select 1'")
    connection.execute("create procedure faultline.reap(mine text) language sql as 'select 1'")

    assert migrate.migrate(connection) == ["definitions"]  # takes them from PUBLIC, who may call whatever is new
    assert migrate.migrate(connection) == []

    assert names_of(connection) == OUR_FUNCTIONS | {"my_report", "my_work"}


def test_functions_of_a_newer_build_that_migrates_meanwhile_stay(dsn: str, sessions: Sessions) -> None:
    """While we wait to drop what we replaced, a newer build takes one of those functions up again, and replaces another."""
    connection, newer, holder = sessions.open().connection, sessions.open(), sessions.open()
    define_earlier(connection, "back_again() returns int language sql return 1")
    define_earlier(connection, "gone() returns int language sql return 1")
    note_another_text(connection)
    holder.begin()
    holder.connection.execute("select 1")
    migration = sessions.open().start(lambda driver: migrate.migrate(driver.connection))
    until(lambda: has_migrated(connection))

    newer.begin()
    newer.connection.execute("select pg_advisory_xact_lock(%s)", (replace.LOCK,))
    pretend(newer.connection, OURS + 1, serves_from=OURS)
    define_earlier(newer.connection, "brand_new() returns int language sql return 1")
    define_earlier(newer.connection, "back_again() returns int language sql return 2")
    newer.commit()
    holder.commit()

    assert migration.result() == ["definitions"]
    assert names_of(connection) == OUR_FUNCTIONS | {"brand_new", "back_again"}


def test_a_helper_that_was_replaced_and_comes_back_is_not_dropped(connection: psycopg.Connection) -> None:
    migrate.migrate(connection)
    (signature,) = connection.execute("select 'faultline.insert_or_find_jobs'::regproc::regprocedure::text").fetchone() or (
        "",
    )
    connection.execute(f"comment on function {signature} is '{definition_marks.REPLACED_MARK}'".encode())

    assert migrate.migrate(connection) == ["definitions"]

    assert "insert_or_find_jobs" in {name for name, _ in functions_of(connection)}
    assert migrate.migrate(connection) == []


def test_a_migration_gives_way_and_says_who_is_in_the_way(dsn: str, sessions: Sessions) -> None:
    """Everybody who wants the table waits behind a migration that waits for its lock: it must not wait long."""
    holder, worker = sessions.open(), sessions.open()
    note_another_text(worker.connection)
    holder.begin()
    holder.connection.execute("select faultline.enqueue('of a long transaction')")

    with psycopg.connect(dsn, autocommit=True) as own:
        started = time.monotonic()
        in_the_way = f"nothing was changed.*process {holder.connection.info.backend_pid} .*idle in transaction"
        with pytest.raises(errors.MigrationBlocked, match=in_the_way):
            migrate.migrate(own, wait_seconds=0.5)
        assert time.monotonic() - started < 20
        worker.connection.execute("select faultline.enqueue('of another')")
        holder.commit()

        assert migrate.migrate(own) == ["definitions"]


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


@pytest.mark.parametrize("thing", ["function faultline.reap", "table faultline.schema_files"])
def test_what_belongs_to_another_login_is_left_to_the_doctor(
    connection: psycopg.Connection, empty_dsn: str, thing: str
) -> None:
    connection.execute("create role owner_of_the_test login")
    connection.execute("create role other_of_the_test")
    try:
        connection.execute(f'grant create on database "{connection.info.dbname}" to owner_of_the_test'.encode())
        with psycopg.connect(empty_dsn, user="owner_of_the_test", autocommit=True) as own:
            migrate.migrate(own)
            own.execute("comment on function faultline.protocol() is 'definitions of another text'")
            connection.execute(f"alter {thing} owner to other_of_the_test".encode())

            with pytest.raises(errors.PermissionDenied, match="; it belongs to another login: faultline doctor says whose"):
                migrate.migrate(own)
    finally:
        connection.execute("drop owned by owner_of_the_test, other_of_the_test cascade")
        connection.execute("drop role owner_of_the_test, other_of_the_test")


def test_a_clients_search_path_does_not_change_what_the_files_mean(connection: psycopg.Connection) -> None:
    connection.execute("create schema trap")
    connection.execute(
        "create function trap.statement_timestamp() returns timestamptz language sql return '2100-01-01'::timestamptz"
    )
    connection.execute("set search_path = trap, pg_catalog")

    migrate.migrate(connection)

    assert connection.execute("select faultline.now() < '2099-01-01'").fetchone() == (True,)


# A database that does not fit the build


def test_a_client_works_with_every_database_that_serves_it(dsn: str) -> None:
    """Also with one that has tables, functions and numbers that it has never heard of."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        pretend(connection, OURS + 5, serves_from=OURS)
        connection.execute("insert into faultline.schema_files (number, name, checksum) values (99, 'new', 'x')")

    assert Database(dsn).facts().args_bytes_max > 0


def test_a_database_of_another_text_serves_its_clients_if_the_version_is_right(dsn: str) -> None:
    """A comment is enough to make another text."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        note_another_text(connection)

    assert Database(dsn).facts().args_bytes_max > 0


@pytest.mark.parametrize(
    ("version", "serves_from", "error", "message"),
    [
        (OURS - 1, 0, errors.SchemaBehind, f"at protocol {OURS - 1}, this build needs {OURS}; run: faultline migrate"),
        (OURS + 5, OURS + 1, errors.SchemaAhead, f"supports builds from {OURS + 1} on, but this build has {OURS}; upgrade"),
    ],
)
def test_a_database_out_of_range_says_so(
    dsn: str, version: int, serves_from: int, error: type[Exception], message: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        pretend(connection, version, serves_from=serves_from)

    with pytest.raises(error, match=message):
        Database(dsn).facts()


def test_a_database_without_a_version_says_so(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop function faultline.protocol()")

    with pytest.raises(errors.SchemaBehind, match="run: faultline migrate"):
        Database(dsn).facts()


def test_a_newer_database_is_not_migrated_backwards(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        pretend(connection, OURS + 1, serves_from=OURS)
        connection.execute("create or replace function faultline.new_verb() returns text language sql return 'of tomorrow'")
        connection.execute("drop function faultline.reap")
        connection.execute("delete from faultline.schema_files")
        before = functions_of(connection)

        assert migrate.migrate(connection) == []

        assert functions_of(connection) == before
        assert migrate.version_of(connection) == (OURS + 1, OURS)


def test_a_numbered_file_that_was_edited_is_noticed(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update faultline.schema_files set checksum = 'x' where number = 1")

        with pytest.raises(errors.SchemaAltered, match="another text"):
            migrate.migrate(connection)


def test_a_database_of_another_line_of_builds_is_refused_with_what_to_do(dsn: str) -> None:
    """Also if it says that it is newer: what it calls version 99 has nothing to do with this build's."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        pretend(connection, 99, serves_from=1)
        connection.execute("update faultline.schema_files set name = '0001_tables', checksum = 'x' where number = 1")
        before = functions_of(connection)

        todo = r"0001_tables.*0001_initial.*use the build that made it.*drop schema faultline cascade.*faultline migrate"
        with pytest.raises(errors.SchemaAltered, match=todo):
            migrate.migrate(connection)

        assert functions_of(connection) == before


def test_what_a_comment_says_is_not_a_change() -> None:
    one = "select 1, '-- no comment, it''s text' -- it's a comment\nfrom t;"

    assert meaning(one) == "select 1, '-- no comment, it''s text' from t;"


def functions_of(connection: psycopg.Connection) -> set[tuple[str, int]]:
    return set(
        connection.execute("select proname, oid from pg_proc where pronamespace = 'faultline'::regnamespace").fetchall()
    )


def names_of(connection: psycopg.Connection) -> set[str]:
    return {name for name, _ in functions_of(connection)}


def define_earlier(connection: psycopg.Connection, function: str) -> None:
    """A function as another build's migration would have left it."""
    connection.execute(f"create or replace function faultline.{function}".encode())
    name = function.partition("(")[0]
    (signature,) = connection.execute(
        "select oid::regprocedure::text from pg_proc where proname = %s order by oid desc limit 1", (name,)
    ).fetchone() or ("",)
    connection.execute(f"comment on function {signature} is 'definition {'0' * 32}'".encode())


def test_a_later_file_adds_no_constraint_that_reads_the_table_at_once() -> None:
    """All would wait behind it for as long as that takes. A primary key builds its index at once: there is no other way."""
    _, *later = migrate.numbered()
    statements = [statement for file in later for statement in meaning(file.text).split(";")]
    added = [one for one in statements if " add constraint " in one and " primary key " not in one]

    assert [one for one in added if not one.endswith(" not valid")] == []


def test_a_constraint_that_is_added_to_a_table_is_validated_afterwards_beside_those_who_write(
    connection: psycopg.Connection, empty_dsn: str
) -> None:
    """To validate it where it is added would hold a lock that nobody reads or writes beside, for as long as that takes."""
    migrate.migrate(connection)
    validated = "select bool_and(convalidated) from pg_constraint where connamespace = 'faultline'::regnamespace"

    connection.execute("alter table faultline.journal drop constraint known_event")
    connection.execute("alter table faultline.journal add constraint known_event check (event <> '') not valid")
    with psycopg.connect(empty_dsn) as writer:
        writer.execute("lock table faultline.journal in row exclusive mode")
        migrate.migrate(connection)
    assert connection.execute(validated).fetchone() == (True,)
