"""Bring a database to this build's schema: beside running programs of this and the previous build, never backwards.

Safe to run twice, from two places at once, and for two databases of a cluster. The version of a database is the answer of
`faultline.protocol()`. Numbered files that were applied stand in `faultline.schema_files`.

Running programs must not notice:

- Functions are replaced in place. One that cannot be (its answer or parameters changed) stays beside the new one, if need be
  under another name, and is dropped once all transactions of that time have ended. See `store/replace.py`.
- Locks on tables are asked for with a short timeout, again and again: whoever waits for a table lock holds up everybody
  behind it.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import (
    MigrationBlocked,
    RecoverBlocked,
    SchemaAhead,
    SchemaAltered,
    SchemaBehind,
    SchemaError,
    SchemaMissing,
)
from faultline.store import verbs
from faultline.store.install import installed, shape
from faultline.store.install.replace import LOCK, drop_replaced, replace_definitions
from faultline.store.install.schema_text import BOOK, Migration, Protocol, definitions, fingerprint, numbered, protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "WAIT_SECONDS", "Migration", "Protocol", "check", "definitions", "migrate", "missing", "numbered", "protocol",
    "recover", "version_of",
]  # fmt: skip

#: How long `migrate` tries to get the locks it needs.
WAIT_SECONDS = 60.0
_OLDEST_SERVER = 150000
#: How long one try may hold up others at a table. Below PostgreSQL's deadlock_timeout: in a deadlock we give way, no worker.
_LOCK_SECONDS = 0.4
_PAUSE_SECONDS = (0.2, 2.0)

#: What the last build before `faultline.protocol()` expects in `faultline.migrations`: exactly these rows. With them it goes
#: on working, and its own `migrate` finds nothing to do.
_FIRST_BUILDS_NUMBERS = (1, 2)
_FIRST_BUILDS_DEFINITIONS = "227ec6eb66b704af5bc891380974104f0023e0b54d8ccb527cedbb957a54d829"

_UNVALIDATED = (
    "select conrelid::regclass::text, quote_ident(conname) from pg_constraint"
    " where connamespace = 'faultline'::regnamespace and conrelid <> 0 and not convalidated and contype = 'c' order by 1, 2"
)
#: Who holds locks on our tables, or is migrating; the oldest transaction first. Other logins' queries may be hidden from us.
_BLOCKERS = """
select distinct on (a.xact_start, a.pid) a.pid, a.usename, a.state,
  extract(epoch from clock_timestamp() - a.xact_start)::float8,
  left(regexp_replace(a.query, '\\s+', ' ', 'g'), 100)
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
left join pg_class c on c.oid = l.relation
where l.granted and l.pid <> pg_backend_pid() and a.datname = current_database()
  and (c.relnamespace = to_regnamespace('faultline') or l.locktype = 'advisory' and l.objsubid = 1
    and (l.classid::bigint << 32 | l.objid::bigint) = %s)
order by a.xact_start, a.pid
limit 3
"""


def migrate(connection: psycopg.Connection, *, wait_seconds: float = WAIT_SECONDS) -> list[str]:
    """Apply what is missing, and put back what was lost or altered. Returns the names of what was applied, if anything.

    A database that a newer build has migrated is left as it is: see `version_of`.
    """
    if connection.info.server_version < _OLDEST_SERVER:
        raise SchemaError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old: Faultline needs 15 or newer; "
            "upgrade the server or use another one"
        )
    # Whatever the database's defaults: a snapshot from before the lock would not show what the last holder applied.
    connection.isolation_level, connection.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    for tries in _tries(connection, wait_seconds):
        try:
            applied = _apply(connection, wait_seconds)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            tries.append(error)
        else:
            _validate(connection)
            drop_replaced(connection)
            return applied
    raise AssertionError("the last try raises")


def recover(
    connection: psycopg.Connection,
    floor: int | None = None,
    *,
    by: str | None = None,
    reason: str | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> tuple[int, int, int]:
    """`queue.recover`, which locks a table as `migrate` does: asked again and again, so that nobody waits long behind it."""
    for tries in _tries(connection, wait_seconds, "recover"):
        try:
            with connection.transaction():
                connection.execute(f"set local lock_timeout = {round(_LOCK_SECONDS * 1000)}".encode())
                statement = verbs.recover(floor, by=by, reason=reason)
                return statement.read(connection.execute(statement.sql.encode(), statement.params).fetchall())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            tries.append(error)
    raise AssertionError("the last try raises")


def version_of(connection: psycopg.Connection) -> Protocol | None:
    """The version of the database's definitions. None where there are none, or those of a build from before versions."""
    with connection.transaction():
        row = connection.execute("select to_regprocedure('faultline.protocol()') is not null").fetchone()
        if row is None or not row[0]:
            return None
        row = connection.execute("select version, serves_from from faultline.protocol()").fetchone()
        return Protocol(*row) if row else None


def check(database: Protocol) -> None:
    """Raise unless this build's clients can work with definitions of this version."""
    ours = protocol()
    if database.version < ours.version:
        raise SchemaBehind(
            f"the database is at protocol {database.version}, this build needs {ours.version}; run: faultline migrate"
        )
    if ours.version < database.serves_from:
        raise SchemaAhead(
            f"the database is at protocol {database.version} and supports builds from {database.serves_from} on, but this "
            f"build has {ours.version}; upgrade faultline-queue in this program"
        )


def missing(error: psycopg.Error) -> SchemaMissing | None:
    """Tell whether a database error means that the schema, or a table or view of it, is not there."""
    if isinstance(error, psycopg.errors.InvalidSchemaName):
        return SchemaMissing("this database has no schema faultline; run: faultline migrate")
    if isinstance(error, psycopg.errors.UndefinedTable):
        return SchemaMissing(f"{error.diag.message_primary or error}; run: faultline migrate")
    return None


def check_files(known: dict[int, str]) -> None:
    """Raise if a numbered file was applied with another text than this build's. Numbers that we do not know are newer."""
    ours = {migration.number: migration for migration in numbered()}
    for number, checksum in known.items():
        if number in ours and ours[number].checksum != checksum:
            raise SchemaAltered(
                f"schema {number} ({ours[number].name}) was applied to this database with another text than in this build; "
                "use the build that applied it, or restore the file: applied migrations are never edited"
            )


def _apply(connection: psycopg.Connection, wait_seconds: float) -> list[str]:
    """One try, one transaction."""
    applied: list[str] = []
    with connection.transaction():
        _lock_and_set(connection, wait_seconds)
        _refuse_strangers(connection)
        if _is_newer(version_of(connection)):
            return applied
        connection.execute(BOOK)
        known: dict[int, str] = dict(connection.execute("select number, checksum from faultline.schema_files").fetchall())
        check_files(known)
        applied += [_apply_file(connection, migration) for migration in numbered() if migration.number not in known]
        if applied or _fingerprint_of(connection) != fingerprint() or _damage(connection):
            replace_definitions(connection)
            connection.execute(f"comment on function faultline.protocol() is 'definitions {fingerprint()}'".encode())
            _write_for_first_builds(connection)
            applied.append(definitions().name)
        applied += _count_on(connection)
    return applied


def _apply_file(connection: psycopg.Connection, migration: Migration) -> str:
    """Apply a numbered file and put that on record, in one transaction: one whose columns are there has lost its record."""
    statement = shape.applied()
    was_applied = migration.number in statement.read(connection.execute(statement.sql.encode()).fetchall())
    if not was_applied:
        connection.execute(migration.text.encode())
    connection.execute(
        "insert into faultline.schema_files (number, name, checksum) values (%s, %s, %s)",
        (migration.number, migration.name, migration.checksum),
    )
    return f"the lost record of {migration.name}" if was_applied else migration.name


def _validate(connection: psycopg.Connection) -> None:
    """Read the rows that a new constraint has not seen yet, in a transaction of its own: others read and write meanwhile.

    What is locked is for the next migration. What a row breaks, the doctor tells.
    """
    if _is_newer(version_of(connection)):
        return
    with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.CheckViolation), connection.transaction():
        connection.execute(f"set local lock_timeout = {round(_LOCK_SECONDS * 1000)}".encode())
        connection.execute("set local search_path = pg_catalog")
        for table, name in connection.execute(_UNVALIDATED.encode()).fetchall():
            connection.execute(f"alter table {table} validate constraint {name}".encode())


def _count_on(connection: psycopg.Connection) -> list[str]:
    """Number the journal from its end on, if somebody or a copy without sequences has it done otherwise."""
    statement = shape.numbering()
    found = statement.read(connection.execute(statement.sql.encode()).fetchall())
    if found is None or (found.plain and not found.behind):
        return []
    for cure in found.cure:
        connection.execute(cure.encode())
    return ["numbering of the journal"]


def _lock_and_set(connection: psycopg.Connection, wait_seconds: float) -> None:
    """Wait until no other migration runs, and make sure that a client's own settings do not change what the files mean."""
    connection.execute("set local statement_timeout = 0")
    connection.execute(f"set local lock_timeout = {round(wait_seconds * 1000) + 1}".encode())
    connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
    connection.execute(f"set local lock_timeout = {round(_LOCK_SECONDS * 1000)}".encode())
    connection.execute("set local search_path = pg_catalog")
    connection.execute("set local client_min_messages = warning")
    connection.execute("set local check_function_bodies = off")


def _tries(connection: psycopg.Connection, wait_seconds: float, command: str = "migrate") -> Iterator[list[psycopg.Error]]:
    """Go on while locks are not to be had. Between two tries those who waited behind us get their turn."""
    deadline, (pause, longest) = time.monotonic() + wait_seconds, _PAUSE_SECONDS
    failures: list[psycopg.Error] = []
    while True:
        yield failures
        if time.monotonic() + pause > deadline:
            blocked = RecoverBlocked if command == "recover" else MigrationBlocked
            raise blocked(_blocked(connection, wait_seconds, command)) from failures[-1]
        time.sleep(pause)
        pause = min(longest, pause * 1.5)


def _blocked(connection: psycopg.Connection, wait_seconds: float, command: str) -> str:
    with connection.transaction():
        found = connection.execute(_BLOCKERS, (LOCK,)).fetchall()
    blockers = [
        f"process {pid} ({login}, {state or 'hidden'}, transaction open for {age or 0:.1f} s: {query})"
        for pid, login, state, age, query in found
    ]
    return (
        f"could not lock the tables of faultline within {wait_seconds:g} s; nothing was changed. "
        f"Blocked by: {'; '.join(blockers) or 'nobody any more'}; end that transaction, or run faultline {command} again"
    )


def _is_newer(database: Protocol | None) -> bool:
    """Whether a newer build has migrated the database: then this one leaves it alone."""
    return database is not None and database.version > protocol().version


def _damage(connection: psycopg.Connection) -> list[str]:
    """What is missing or was altered since: by a restore without the roles, or by a person."""
    return [
        thing
        for statement in installed.repairable()
        for thing in statement.read(connection.execute(statement.sql.encode(), statement.params).fetchall())
    ]


def _fingerprint_of(connection: psycopg.Connection) -> str | None:
    row = connection.execute("select obj_description(to_regprocedure('faultline.protocol()'), 'pg_proc')").fetchone()
    return row[0].removeprefix("definitions ") if row and row[0] else None


def _refuse_strangers(connection: psycopg.Connection) -> None:
    """A schema that somebody else made could hold triggers that would run with our rights, or things that are not ours."""
    row = connection.execute(
        "select pg_get_userbyid(n.nspowner), current_user,"
        " (select pg_get_userbyid(c.relowner) from pg_class c where c.relnamespace = n.oid and c.relname = 'migrations'),"
        " exists (select from pg_class c where c.relnamespace = n.oid)"
        " or exists (select from pg_proc p where p.pronamespace = n.oid)"
        " from pg_namespace n where n.nspname = 'faultline'"
    ).fetchone()
    if row is None:
        return
    owner, we, book_owner, in_use = row
    if owner != we or book_owner not in (None, we):
        raise SchemaError(
            f"the schema faultline belongs to {owner}, but this login is {we}; run as {owner}: faultline migrate"
        )
    if in_use and book_owner is None:
        raise SchemaError("the schema faultline was not created by Faultline; rename it, or use another database")


def _write_for_first_builds(connection: psycopg.Connection) -> None:
    rows = [(m.number, m.name, m.checksum) for m in numbered() if m.number in _FIRST_BUILDS_NUMBERS]
    rows.append((0, definitions().name, _FIRST_BUILDS_DEFINITIONS))
    connection.execute("delete from faultline.migrations where number > %s", (max(_FIRST_BUILDS_NUMBERS),))
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into faultline.migrations as m (number, name, checksum) values (%s, %s, %s)"
            " on conflict (number) do update set checksum = excluded.checksum where m.checksum <> excluded.checksum",
            rows,
        )
