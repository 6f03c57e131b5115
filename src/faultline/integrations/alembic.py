"""Keep Alembic's autogenerate away from Faultline's schema: it would drop the tables, which no model describes.

    context.configure(..., include_schemas=True, include_name=include_name)

Where the `search_path` of the login has that schema, as that of a login named `faultline` has, Alembic finds the tables
without naming it. Your own may be in it, too: there only Faultline's tables are left out, by their names.
`faultline migrate`, or `faultline.migrate()`, changes that schema, and nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic import context
from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SCHEMA = "faultline"
#: All that `faultline migrate` creates.
TABLES = frozenset(
    {
        "api_keys", "budgets", "calls", "edges", "flows", "group_events", "groups", "journal", "keys", "ledger",
        "limited_queues", "limits", "nudges", "open_jobs", "queues", "samples", "sampling", "schedules", "schema_files",
        "settings", "signals", "steps", "streams", "subscriptions", "sweeps", "tallies", "ticks", "unique_keys", "workers",
    }
)  # fmt: skip
#: Under this name the context of a migration remembers which tables of that schema are found without it.
_FOUND = "faultline_tables"
_VISIBLE = text(
    "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname = :schema and c.relkind = 'r' and pg_table_is_visible(c.oid)"
)


def include_name(name: str | None, kind: str, parents: Mapping[Any, str | None]) -> bool:
    """For `include_name` of Alembic's `context.configure`: false for all that is in Faultline's schema.

    :param name: Of what Alembic has found.
    :param kind: What it is: `schema`, `table`, `column`, …
    :param parents: What it belongs to.
    """
    if kind == "schema":
        return name != _SCHEMA
    schema = parents.get("schema_name")
    if schema is None:
        table = name if kind == "table" else parents.get("table_name")
        return table not in TABLES or table not in _visible()
    return schema != _SCHEMA


def _visible() -> Collection[str]:
    """The tables of the schema that the running migration finds without naming it."""
    try:
        migration = context.get_context()
    except NameError:  # as Alembic says that none is running
        return ()
    if _FOUND not in migration.opts and migration.connection is not None:
        migration.opts[_FOUND] = frozenset(migration.connection.execute(_VISIBLE, {"schema": _SCHEMA}).scalars())
    found: Collection[str] = migration.opts.get(_FOUND, ())
    return found
