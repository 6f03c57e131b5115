"""Bring a database to this build's schema. Safe to run twice, from two places at once, and for two databases of a cluster.

Two kinds of files make the schema. Numbered ones (`0001_tables.sql`) change what is stored: each is applied once and must
never be edited afterwards. Definitions (functions, guards, views, roles) hold no data: all of them are replaced whenever
one differs. What was applied stands in `faultline.migrations`; the definitions are number 0.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import SchemaAhead, SchemaAltered, SchemaBehind, SchemaError, SchemaMissing

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_OLDEST_SERVER = 150000
#: One migration at a time in a database. The number is "faultline" in ASCII, cut to 63 bits.
_LOCK = 0x6661756C746C696E

_BOOK = """
create schema if not exists faultline;
create table if not exists faultline.migrations (
  number integer primary key,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default clock_timestamp()
);
"""

#: Functions that a view, a trigger or a table's default needs are kept; `create or replace` renews them.
_DROP_FUNCTIONS = """
do $$
declare
  signature text;
begin
  for signature in
    select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'faultline'::regnamespace
  loop
    begin
      execute 'drop function ' || signature;
    exception when dependent_objects_still_exist then
      null;
    end;
  end loop;
end
$$;
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrate(connection: psycopg.Connection) -> list[str]:
    """Apply what is missing, in one transaction. Returns the names of what was applied; an empty list means up to date."""
    if connection.info.server_version < _OLDEST_SERVER:
        raise SchemaError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old: Faultline needs 15 or newer; "
            "upgrade the server or use another one"
        )
    applied: list[str] = []
    # Whatever the database's defaults: a snapshot from before the lock would not show what the last holder applied.
    connection.isolation_level, connection.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        # A client's own settings must not change what the files mean.
        connection.execute("set local search_path = pg_catalog")
        connection.execute("set local client_min_messages = warning")
        _refuse_strangers(connection)
        connection.execute(_BOOK)
        known = _known(connection)
        _refuse_foreign(known)
        for migration in numbered():
            if migration.number not in known:
                connection.execute(migration.text.encode())
                _note(connection, migration)
                applied.append(migration.name)
        if applied or known.get(0) != definitions().checksum:
            connection.execute("drop view if exists faultline.jobs")
            connection.execute(_DROP_FUNCTIONS)
            connection.execute(definitions().text.encode())
            _note(connection, definitions())
            applied.append(definitions().name)
    return applied


def check(known: dict[int, str]) -> None:
    """Raise unless the database is at exactly this build's schema. `known` is number → checksum, from the database."""
    latest, needed = max(known, default=0), numbered()[-1].number
    if latest > needed:
        raise SchemaAhead(
            f"the database is at schema {latest}, this build knows only {needed}; upgrade faultline-queue in this program"
        )
    if latest < needed:
        raise SchemaBehind(f"the database is at schema {latest}, this build needs {needed}; run: faultline migrate")
    _refuse_foreign(known)
    if known.get(0) != definitions().checksum:
        raise SchemaBehind(
            f"the database has schema {latest}, but with the functions of another build; run: faultline migrate"
        )


def missing(error: psycopg.Error) -> SchemaMissing | None:
    """Tell whether a database error means that the schema was never installed."""
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return SchemaMissing("this database has no schema faultline; run: faultline migrate")
    return None


@cache
def numbered() -> tuple[Migration, ...]:
    files = sorted((f for f in _schema().iterdir() if f.name[:4].isdigit()), key=lambda f: f.name)
    return tuple(Migration(int(f.name[:4]), f.name.removesuffix(".sql"), f.read_text()) for f in files)


@cache
def definitions() -> Migration:
    functions = sorted(_schema().joinpath("functions").iterdir(), key=lambda f: f.name)
    rest = (_schema().joinpath(name) for name in ("guards.sql", "views.sql", "roles.sql"))
    text = "\n".join(f.read_text() for f in (*functions, *rest) if f.name.endswith(".sql"))
    return Migration(0, "definitions", f"set local check_function_bodies = off;\n{text}")


def _schema() -> Traversable:
    return resources.files("faultline.schema")


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
        raise SchemaError(f"the schema faultline belongs to {owner}, and this is {we}; run: faultline migrate, as {owner}")
    if in_use and book_owner is None:
        raise SchemaError("there is a schema faultline that Faultline did not make; rename it, or use another database")


def _known(connection: psycopg.Connection) -> dict[int, str]:
    return dict(connection.execute("select number, checksum from faultline.migrations").fetchall())


def _note(connection: psycopg.Connection, migration: Migration) -> None:
    connection.execute(
        "insert into faultline.migrations (number, name, checksum) values (%s, %s, %s)"
        " on conflict (number) do update set checksum = excluded.checksum, applied_at = clock_timestamp()",
        (migration.number, migration.name, migration.checksum),
    )


def _refuse_foreign(known: dict[int, str]) -> None:
    ours = {migration.number: migration for migration in numbered()}
    for number, checksum in known.items():
        if number > max(ours):
            raise SchemaAhead(
                f"the database is at schema {number}, this build knows only {max(ours)}; "
                "upgrade faultline-queue in this program"
            )
        if number and ours[number].checksum != checksum:
            raise SchemaAltered(
                f"schema {number} ({ours[number].name}) was applied to this database with another text than this build's; "
                "use the build that applied it, or restore the file: applied migrations are never edited"
            )
