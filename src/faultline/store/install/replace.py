"""Replace a database's definitions with this build's while programs use them.

A function in PL/pgSQL looks up the functions it calls by name, when it first reaches the call. So a call that began before
the migration goes on in its old text and may call old functions after the migration has committed. Therefore an old function
keeps its name if the new one can exist beside it. It is renamed only if it is a verb, or if a call could mean either of the
two. Functions that this build does not have are marked, and dropped once all transactions of that time have ended.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

import psycopg

from faultline.store.install.definition_marks import mark_functions, mark_guards, mark_replaced, mark_views, replaced
from faultline.store.install.rights import verbs
from faultline.store.install.schema_text import Definition, definition_files

if TYPE_CHECKING:
    from collections.abc import Callable

#: One migration at a time in a database. The number is "faultline" in ASCII, cut to 63 bits.
LOCK = 0x6661756C746C696E
#: How long to wait for transactions that may still call replaced functions. The next migration drops what is left.
_WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.05

_FUNCTIONS = "select oid, ctid::text from pg_proc where pronamespace = 'faultline'::regnamespace and prokind = 'f'"
_OF_NAME = (
    "select oid from pg_proc where pronamespace = 'faultline'::regnamespace and prokind = 'f' and proname = %s order by oid"
)
#: Whether a call with some number of arguments would match both an old function and a new one.
_OVERLAP = """
select exists (
  select from pg_proc o
  join pg_proc n on n.oid = any (%s)
  cross join generate_series(
    greatest(o.pronargs - o.pronargdefaults, n.pronargs - n.pronargdefaults)::integer, least(o.pronargs, n.pronargs)::integer
  ) as given
  where o.oid = %s and (o.proargtypes::oid[])[0:given - 1] = (n.proargtypes::oid[])[0:given - 1]
)
"""
_VIEW = re.compile(r"(create or replace view faultline\.(\w+) as.*?;)", re.DOTALL)
_TRANSACTIONS = (
    "select l.virtualtransaction from pg_locks l join pg_stat_activity a on a.pid = l.pid"
    " where l.locktype = 'virtualxid' and l.granted and l.pid <> pg_backend_pid() and a.datname = current_database()"
)


def replace_definitions(connection: psycopg.Connection, lock_guarded: Callable[[], None]) -> None:
    """Run in the caller's transaction, with `check_function_bodies` off: functions call each other in any order.

    `lock_guarded` locks the tables that get guards. It is called as late as possible.
    """
    ours: set[int] = set()
    for definition in definition_files():
        if definition.is_function:
            ours |= _replace_function(connection, definition)
        elif definition.name == "views":
            _replace_views(connection, definition)
        elif definition.name == "guards":
            lock_guarded()
            ours |= _made_by(connection, definition)
        else:
            connection.execute(definition.text.encode())
    mark_functions(connection, ours)
    mark_replaced(connection, ours)
    mark_guards(connection)
    mark_views(connection)


def drop_replaced(connection: psycopg.Connection) -> None:
    """Drop what a migration has replaced, once no older transaction can be running it.

    What a person created in the schema stays. A newer build may migrate while we wait: its own migration drops what it
    replaces, and it removes the mark from what it uses again.
    """
    found = replaced(connection)
    if found and _older_transactions_ended(connection):
        # The next migration drops what is locked or still in use.
        with contextlib.suppress(
            psycopg.errors.LockNotAvailable, psycopg.errors.DependentObjectsStillExist, psycopg.errors.UndefinedFunction
        ):
            _drop(connection, found)


def _drop(connection: psycopg.Connection, oids: set[int]) -> None:
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog")
        connection.execute("set local lock_timeout = '1s'")
        row = connection.execute("select pg_try_advisory_xact_lock(%s)", (LOCK,)).fetchone()
        if row != (True,):
            return
        for oid in sorted(oids & replaced(connection)):
            connection.execute(f"drop function {_signature(connection, oid)}".encode())


def _replace_function(connection: psycopg.Connection, definition: Definition) -> set[int]:
    """Replace it in place if PostgreSQL allows that; otherwise set the old one aside. Returns this build's functions."""
    before = _of_name(connection, definition.name)
    aside: set[int] = set()
    try:
        with connection.transaction():
            made = _made_by(connection, definition)
    except (psycopg.errors.InvalidFunctionDefinition, psycopg.errors.AmbiguousFunction):
        aside = before
        for oid in before:
            _rename(connection, oid, _put_aside(oid))
        made = _made_by(connection, definition)
    for oid in before - made:
        # Clients may call a verb with untyped values: their call must match the new one only.
        in_the_way = definition.name in verbs() or connection.execute(_OVERLAP, (list(made), oid)).fetchone() == (True,)
        if in_the_way != (oid in aside):
            _rename(connection, oid, _put_aside(oid) if in_the_way else definition.name)
    return made


def _made_by(connection: psycopg.Connection, definition: Definition) -> set[int]:
    """Run it. Returns the functions that it created or replaced: replacing one moves its row in the catalogue."""
    before: dict[int, str] = dict(connection.execute(_FUNCTIONS).fetchall())
    connection.execute(definition.text.encode())
    return {oid for oid, ctid in connection.execute(_FUNCTIONS).fetchall() if before.get(oid) != ctid}


def _of_name(connection: psycopg.Connection, name: str) -> set[int]:
    return {row[0] for row in connection.execute(_OF_NAME, (name,)).fetchall()}


def _put_aside(oid: int) -> str:
    return f"replaced_{oid}"


def _rename(connection: psycopg.Connection, oid: int, name: str) -> None:
    connection.execute(f"alter function {_signature(connection, oid)} rename to {name}".encode())


def _signature(connection: psycopg.Connection, oid: int) -> str:
    row = connection.execute("select %s::oid::regprocedure::text", (oid,)).fetchone()
    assert row, "a select without a table returns one row"  # noqa: S101 - a bug of ours
    return str(row[0])


def _replace_views(connection: psycopg.Connection, definition: Definition) -> None:
    """Columns can be added at the end of a view in place; any other change needs a new view, with new grants."""
    for text, name in _VIEW.findall(definition.text):
        if _is_there(connection, text, name):
            continue
        try:
            with connection.transaction():
                connection.execute(text.encode())
        except psycopg.errors.InvalidTableDefinition:
            connection.execute(f"drop view faultline.{name}".encode())
            connection.execute(text.encode())


def _is_there(connection: psycopg.Connection, text: str, name: str) -> bool:
    """Whether the view is up to date: replacing it would need a lock that enqueues rarely leave free."""
    with connection.transaction(force_rollback=True):
        connection.execute(text.replace(f"faultline.{name}", "faultline.wanted", 1).encode())
        row = connection.execute(
            "select pg_get_viewdef('faultline.wanted'::regclass) = pg_get_viewdef(to_regclass(%s))", (f"faultline.{name}",)
        ).fetchone()
    return row == (True,)


def _older_transactions_ended(connection: psycopg.Connection) -> bool:
    """Wait until every transaction that is open now has ended. False if one of them takes too long."""
    older, deadline = _transactions(connection), time.monotonic() + _WAIT_SECONDS
    while older:
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
        older &= _transactions(connection)
    return True


def _transactions(connection: psycopg.Connection) -> set[str]:
    with connection.transaction():
        return {row[0] for row in connection.execute(_TRANSACTIONS).fetchall()}
