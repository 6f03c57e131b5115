"""Mark what Faultline created: the comment of a trigger, view or function holds a digest of its definition.

A person who alters one does not alter its comment by accident. What a migration has replaced is marked too, until no program
can be about to call it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from faultline.store.install.schema_text import definition_files, meaning

if TYPE_CHECKING:
    import psycopg

#: Digests of definitions as PostgreSQL prints them, whatever the session's search_path.
TRIGGER_MARK = "'guard ' || md5(replace(pg_get_triggerdef(t.oid), 'faultline.', ''))"
VIEW_MARK = "'view ' || md5(replace(pg_get_viewdef(c.oid), 'faultline.', ''))"
#: `protocol()` has no digest: its comment says which definitions are installed.
FUNCTION_MARK = "'definition ' || md5(replace(pg_get_functiondef(p.oid), 'faultline.', ''))"
_MARKED = "coalesce(obj_description(p.oid, 'pg_proc'), '') ~ '^definition [0-9a-f]{32}$'"
#: The comment of a function that a migration has replaced.
REPLACED_MARK = "replaced"
IS_REPLACED = f"coalesce(obj_description(p.oid, 'pg_proc'), '') = '{REPLACED_MARK}'"
_TRIGGER = re.compile(r"create or replace trigger (\w+)\s+[\w\s,]*?\bon faultline\.(\w+)")


def mark_guards(connection: psycopg.Connection) -> None:
    """Mark the triggers of this build. `migrate` has just created them."""
    looks = connection.execute(
        f"select c.relname, t.tgname, {TRIGGER_MARK} from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'faultline'::regnamespace and c.relname || '.' || t.tgname = any (%s)"
        f" and obj_description(t.oid, 'pg_trigger') is distinct from {TRIGGER_MARK}".encode(),
        (list(triggers()),),
    ).fetchall()
    for table, trigger, look in looks:
        connection.execute(f"comment on trigger {trigger} on faultline.{table} is '{look}'".encode())


def mark_views(connection: psycopg.Connection) -> None:
    looks = connection.execute(
        f"select c.relname, {VIEW_MARK} from pg_class c"
        " where c.relnamespace = 'faultline'::regnamespace and c.relname = any (%s)"
        f" and obj_description(c.oid, 'pg_class') is distinct from {VIEW_MARK}".encode(),
        (list(view_names()),),
    ).fetchall()
    for view, look in looks:
        connection.execute(f"comment on view faultline.{view} is '{look}'".encode())


def mark_functions(connection: psycopg.Connection, oids: set[int]) -> None:
    """Mark these functions. `migrate` has just created them."""
    _comment(connection, FUNCTION_MARK, "p.oid = any (%s) and p.proname <> 'protocol'", (list(oids),))


def mark_replaced(connection: psycopg.Connection, ours: set[int]) -> None:
    """Mark functions of earlier builds that this one does not have: they have its names, were set aside, or are marked."""
    _comment(
        connection,
        f"'{REPLACED_MARK}'",
        f"p.prokind = 'f' and p.oid <> all (%s) and (p.proname = any (%s) or p.proname ~ '^replaced_[0-9]+$' or {_MARKED})",
        (list(ours), list(function_names())),
    )


def replaced(connection: psycopg.Connection) -> set[int]:
    """The functions that a migration has replaced and on which nothing in the database depends."""
    with connection.transaction():
        found = connection.execute(
            f"select p.oid from pg_proc p where p.pronamespace = to_regnamespace('faultline') and {IS_REPLACED}"
            " and not exists (select from pg_depend d"
            " where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid and d.deptype = 'n')".encode()
        ).fetchall()
    return {row[0] for row in found}


def _comment(connection: psycopg.Connection, text: str, which: str, params: tuple[Any, ...]) -> None:
    found = connection.execute(
        f"select format('comment on function %%s is %%L', p.oid::regprocedure, {text}) from pg_proc p"
        f" where p.pronamespace = 'faultline'::regnamespace and {which}"
        f" and obj_description(p.oid, 'pg_proc') is distinct from {text}".encode(),
        params,
    ).fetchall()
    for (statement,) in found:
        connection.execute(statement.encode())


@cache
def function_names() -> tuple[str, ...]:
    texts = (definition.text for definition in definition_files())
    return tuple(
        sorted({name for text in texts for name in re.findall(r"create or replace function faultline\.(\w+)", text)})
    )


@cache
def view_names() -> tuple[str, ...]:
    texts = (definition.text for definition in definition_files() if definition.name == "views")
    return tuple(sorted({name for text in texts for name in re.findall(r"create or replace view faultline\.(\w+)", text)}))


@cache
def triggers() -> tuple[str, ...]:
    """`table.trigger`, as the definitions name them."""
    text = "".join(definition.text for definition in definition_files() if definition.name == "guards")
    return tuple(sorted(f"{table}.{trigger}" for trigger, table in _TRIGGER.findall(meaning(text))))
