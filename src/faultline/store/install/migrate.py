"""Bring a database to this build's schema while programs of this and the previous build run. Never backwards.

Safe to run twice, twice at once, and for two databases of a cluster. `faultline.protocol()` returns the version of a
database; `faultline.schema_files` lists the numbered files that were applied.

Running programs must not notice:

- Functions are replaced in place. An old one whose result or parameters changed stays beside the new one, under another name
  if necessary, until all transactions of that time have ended. See `install/replace.py`.
- Table locks are tried with a short timeout, again and again: a session that waits for a table lock blocks all behind it.
- All tables are locked in one moment, in the order in which verbs come to them. Locked one after another, each when its
  turn comes, most tries would meet a verb that holds the next one and waits for the last.
"""

from __future__ import annotations

import contextlib
import re
import time
from functools import cache
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import (
    MigrationBlocked,
    PermissionDenied,
    RecoverBlocked,
    SchemaAhead,
    SchemaAltered,
    SchemaBehind,
    SchemaError,
    SchemaMissing,
)
from faultline.store import verbs
from faultline.store.install import constraints, schema_diff
from faultline.store.install.replace import LOCK, drop_replaced, replace_definitions
from faultline.store.install.schema_text import (
    BOOK,
    Migration,
    Protocol,
    definition_files,
    definitions,
    fingerprint,
    numbered,
    protocol,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "WAIT_SECONDS", "Migration", "Protocol", "check", "definitions", "migrate", "missing", "numbered", "protocol",
    "recover", "version_of",
]  # fmt: skip

#: How long `migrate` tries to get its locks.
WAIT_SECONDS = 60.0
_OLDEST_SERVER = 150000
#: How long one try may block others at a table. Below PostgreSQL's deadlock_timeout: in a deadlock we fail, not a worker.
_LOCK_SECONDS = 0.4
_PAUSE_SECONDS = (0.2, 2.0)
#: Verbs read or write these before they come to open jobs, if they do; all others after.
_BEFORE_OPEN_JOBS = (
    "settings",
    "queues",
    "limits",
    "limited_queues",
    "schedules",
    "ticks",
    "workers",
    "keys",
    "unique_keys",
)
#: To lock one is to lock its tables after it.
_VIEWS = ("new_jobs", "jobs")
_ALTERED = re.compile(r"alter table faultline\.(\w+)")
_GUARDED = re.compile(r"^(?:before|after) .* on faultline\.(\w+)", re.MULTILINE)

_UNVALIDATED = (
    "select conrelid::regclass::text, quote_ident(conname) from pg_constraint"
    " where connamespace = 'faultline'::regnamespace and conrelid <> 0 and not convalidated and contype = 'c' order by 1, 2"
)
#: The sessions that lock our tables or migrate, oldest transaction first. The queries of other logins may be hidden from us.
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
#: They have no process, and outlive the server.
_PREPARED = """
select p.gid, p.owner::text, extract(epoch from clock_timestamp() - p.prepared)::float8, quote_literal(p.gid)
from pg_prepared_xacts p
where p.database = current_database() and exists (
  select from pg_locks own
  join pg_locks l on l.virtualtransaction = own.virtualtransaction and l.pid is null
  join pg_class c on c.oid = l.relation
  where own.locktype = 'transactionid' and own.transactionid = p.transaction and own.pid is null
    and c.relnamespace = to_regnamespace('faultline')
)
order by p.prepared, p.gid
limit 3
"""


def migrate(connection: psycopg.Connection, *, wait_seconds: float = WAIT_SECONDS) -> list[str]:
    """Apply what is missing, and restore what was lost or altered. Returns the names of what was applied.

    A database that a newer build has migrated stays as it is: see `version_of`.
    """
    if connection.info.server_version < _OLDEST_SERVER:
        raise SchemaError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old: Faultline needs 15 or newer; "
            "upgrade the server or use another one"
        )
    # Whatever the database's defaults: a snapshot from before the lock would not show what its last holder applied.
    connection.isolation_level, connection.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    try:
        applied = _apply_in_time(connection, wait_seconds)
        _validate(connection)
        drop_replaced(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise PermissionDenied(f"{error.diag.message_primary}; {_right_to_migrate(connection)}") from error
    return applied


def recover(
    connection: psycopg.Connection,
    floor: int | None = None,
    *,
    by: str | None = None,
    reason: str | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> tuple[int, int, int]:
    """`verbs.recover` locks a table as `migrate` does: try it again and again, so that no session waits long behind it."""
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
    """The version of the database's definitions. None: there are none."""
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
    """The error to raise if this one means that the schema, or a table or view of it, does not exist."""
    if isinstance(error, psycopg.errors.InvalidSchemaName):
        return SchemaMissing("this database has no schema faultline; run: faultline migrate")
    if isinstance(error, psycopg.errors.UndefinedTable):
        return SchemaMissing(f"{error.diag.message_primary or error}; run: faultline migrate")
    return None


def check_files(known: dict[int, tuple[str, str]]) -> None:
    """Raise if a numbered file was applied with another text than this build's. Unknown numbers are of newer builds."""
    for ours in numbered():
        name, checksum = known.get(ours.number, (ours.name, ours.checksum))
        if name != ours.name:
            raise SchemaAltered(
                f"a build that this one does not follow has made this database: its schema {ours.number} is {name}, "
                f"not {ours.name}; use the build that made it or, if its jobs are not needed, run "
                "`drop schema faultline cascade`, then: faultline migrate"
            )
        if checksum != ours.checksum:
            raise SchemaAltered(
                f"schema {ours.number} ({name}) was applied to this database with another text than in this build; "
                "use the build that applied it, or restore the file: applied migrations are never edited"
            )


def _apply_in_time(connection: psycopg.Connection, wait_seconds: float) -> list[str]:
    for tries in _tries(connection, wait_seconds):
        try:
            return _apply(connection, wait_seconds)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            tries.append(error)
    raise AssertionError("the last try raises")


def _apply(connection: psycopg.Connection, wait_seconds: float) -> list[str]:
    """One try, one transaction."""
    applied: list[str] = []
    with connection.transaction():
        _lock_and_set(connection, wait_seconds)
        _refuse_strangers(connection)
        known = _records(connection)
        # First: the version of another line of builds means nothing.
        check_files(known)
        if _is_newer(version_of(connection)):
            return applied
        connection.execute(BOOK)
        new = [migration for migration in numbered() if migration.number not in known]
        _lock_tables(connection, _altered(new), "access exclusive")
        applied += [_apply_file(connection, migration) for migration in new]
        if applied or _fingerprint_of(connection) != fingerprint() or _damage(connection):
            replace_definitions(connection, lambda: _lock_tables(connection, _guarded(), "share row exclusive"))
            connection.execute(f"comment on function faultline.protocol() is 'definitions {fingerprint()}'".encode())
            applied.append(definitions().name)
        applied += _count_on(connection)
    return applied


def _records(connection: psycopg.Connection) -> dict[int, tuple[str, str]]:
    """Number → name and checksum of each numbered file that was applied."""
    if connection.execute("select to_regclass('faultline.schema_files')").fetchone() == (None,):
        return {}
    found = connection.execute("select number, name, checksum from faultline.schema_files").fetchall()
    return {number: (name, checksum) for number, name, checksum in found}


def _altered(files: Sequence[Migration]) -> set[str]:
    """By files, and by the definitions that follow them. A view may change with its table."""
    return {table for one in files for table in _ALTERED.findall(one.text)} | _guarded() | {*_VIEWS} if files else set()


@cache
def _guarded() -> set[str]:
    return {table for one in definition_files() for table in _GUARDED.findall(one.text)}


def _lock_tables(connection: psycopg.Connection, tables: set[str], mode: str) -> None:
    """Those that there are, in the order of verbs."""
    found = {
        table
        for (table,) in connection.execute(
            "select relname::text from pg_class where relnamespace = 'faultline'::regnamespace and relkind in ('r', 'v')"
        ).fetchall()
    }
    first = [table for table in (*_BEFORE_OPEN_JOBS, *_VIEWS, "open_jobs") if table in tables & found]
    named = ", ".join(f"faultline.{table}" for table in [*first, *sorted((tables & found).difference(first))])
    if named:
        connection.execute(f"lock table {named} in {mode} mode".encode())


def _apply_file(connection: psycopg.Connection, migration: Migration) -> str:
    """Apply a numbered file and record it, in one transaction. A file whose columns exist has only lost its record."""
    statement = constraints.applied()
    was_applied = migration.number in statement.read(connection.execute(statement.sql.encode()).fetchall())
    if not was_applied:
        connection.execute(migration.text.encode())
    connection.execute(
        "insert into faultline.schema_files (number, name, checksum) values (%s, %s, %s)",
        (migration.number, migration.name, migration.checksum),
    )
    return f"the lost record of {migration.name}" if was_applied else migration.name


def _validate(connection: psycopg.Connection) -> None:
    """Validate new constraints on the old rows, in a separate transaction, so that others can read and write meanwhile.

    The next migration tries again where a table is locked. The doctor reports a constraint that a row violates.
    """
    if _is_newer(version_of(connection)):
        return
    with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.CheckViolation), connection.transaction():
        connection.execute(f"set local lock_timeout = {round(_LOCK_SECONDS * 1000)}".encode())
        connection.execute("set local search_path = pg_catalog")
        for table, name in connection.execute(_UNVALIDATED.encode()).fetchall():
            connection.execute(f"alter table {table} validate constraint {name}".encode())


def _count_on(connection: psycopg.Connection) -> list[str]:
    """Repair the journal's numbering, after a change by a person or a copy without sequences."""
    statement = constraints.numbering()
    found = statement.read(connection.execute(statement.sql.encode()).fetchall())
    if found is None or (found.plain and not found.behind):
        return []
    for cure in found.cure:
        connection.execute(cure.encode())
    return ["numbering of the journal"]


def _lock_and_set(connection: psycopg.Connection, wait_seconds: float) -> None:
    """Wait until no other migration runs. Override client settings that would change the meaning of the files."""
    connection.execute("set local statement_timeout = 0")
    connection.execute(f"set local lock_timeout = {round(wait_seconds * 1000) + 1}".encode())
    connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
    connection.execute(f"set local lock_timeout = {round(_LOCK_SECONDS * 1000)}".encode())
    connection.execute("set local search_path = pg_catalog")
    connection.execute("set local client_min_messages = warning")
    connection.execute("set local check_function_bodies = off")


def _tries(connection: psycopg.Connection, wait_seconds: float, command: str = "migrate") -> Iterator[list[psycopg.Error]]:
    """Try until the locks are free. Between two tries the sessions that waited behind us get their turn."""
    deadline, (pause, longest) = time.monotonic() + wait_seconds, _PAUSE_SECONDS
    failures: list[psycopg.Error] = []
    while True:
        yield failures
        if time.monotonic() + pause > deadline:
            blocked = RecoverBlocked if command == "recover" else MigrationBlocked
            raise blocked(_blocked(connection, wait_seconds, command)) from failures[-1]
        time.sleep(pause)
        pause = min(longest, pause * 1.5)


def _right_to_migrate(connection: psycopg.Connection) -> str:
    """What a refused login needs. It is the owner of the schema, if there is one: see `_refuse_strangers`."""
    with connection.transaction():
        row = connection.execute(
            "select to_regnamespace('faultline') is null and not has_database_privilege(current_database(), 'create')"
        ).fetchone()
    if row == (True,):
        return f"as the owner of the database: grant create on database {connection.info.dbname} to this login"
    return "it belongs to another login: faultline doctor says whose it is and prints the statement that gives it back"


def _blocked(connection: psycopg.Connection, wait_seconds: float, command: str) -> str:
    with connection.transaction():
        found = connection.execute(_BLOCKERS, (LOCK,)).fetchall()
        prepared = connection.execute(_PREPARED).fetchall()
    blockers = [
        f"the prepared transaction {name} of {login}, {age:.1f} s old: "
        f"rollback prepared {quoted}, or commit prepared {quoted}"
        for name, login, age, quoted in prepared
    ]
    blockers += [
        f"process {pid} ({login}, {state or 'hidden'}, transaction open for {age or 0:.1f} s: {query})"
        for pid, login, state, age, query in found
    ]
    return (
        f"could not lock the tables of faultline within {wait_seconds:g} s; nothing was changed. "
        f"Blocked by: {'; '.join(blockers) or 'nobody any more'}; end that transaction, or run faultline {command} again"
    )


def _is_newer(database: Protocol | None) -> bool:
    """Whether a newer build has migrated the database: then this one changes nothing."""
    return database is not None and database.version > protocol().version


def _damage(connection: psycopg.Connection) -> list[str]:
    """What is missing or altered: after a restore without the roles, or by a person."""
    return [
        thing
        for statement in schema_diff.repairable()
        for thing in statement.read(connection.execute(statement.sql.encode(), statement.params).fetchall())
    ]


def _fingerprint_of(connection: psycopg.Connection) -> str | None:
    row = connection.execute("select obj_description(to_regprocedure('faultline.protocol()'), 'pg_proc')").fetchone()
    return row[0].removeprefix("definitions ") if row and row[0] else None


def _refuse_strangers(connection: psycopg.Connection) -> None:
    """Raise if another login created the schema: its triggers would run with our rights, or it is another program's."""
    row = connection.execute(
        "select pg_get_userbyid(n.nspowner), current_user,"
        " (select pg_get_userbyid(c.relowner) from pg_class c where c.relnamespace = n.oid and c.relname = 'schema_files'),"
        " exists (select from pg_class c where c.relnamespace = n.oid)"
        " or exists (select from pg_proc p where p.pronamespace = n.oid)"
        " from pg_namespace n where n.nspname = 'faultline'"
    ).fetchone()
    if row is None:
        return
    owner, we, book_owner, in_use = row
    if owner != we:
        raise SchemaError(
            f"the schema faultline belongs to {owner}, but this login is {we}; run as {owner}: faultline migrate"
        )
    if book_owner not in (None, we):
        raise PermissionDenied(f"must be owner of table schema_files; {_right_to_migrate(connection)}")
    if in_use and book_owner is None:
        raise SchemaError("the schema faultline was not created by Faultline; rename it, or use another database")
