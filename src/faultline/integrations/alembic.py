"""Keep Alembic's autogenerate away from Faultline's schema: it would drop the tables, which no model describes.

    context.configure(..., include_schemas=True, include_name=include_name)

A login that is named `faultline`, or whose `search_path` begins with that schema, has it as its default schema. Alembic then
does not name it, and your own tables may be in it, too: there only Faultline's tables are left out, by their names.
`faultline migrate`, or `faultline.migrate()`, changes that schema, and nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic import context

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMA = "faultline"
#: All that `faultline migrate` creates.
TABLES = frozenset(
    {
        "api_keys", "budgets", "calls", "edges", "flows", "group_events", "groups", "journal", "keys", "ledger", "limits",
        "nudges", "open_jobs", "queues", "samples", "sampling", "schedules", "schema_files", "settings", "shards", "signals",
        "steps", "streams", "subscriptions", "sweeps", "tallies", "ticks", "unique_keys", "workers",
    }
)  # fmt: skip


def include_name(name: str | None, kind: str, parents: Mapping[Any, str | None]) -> bool:
    """For `include_name` of Alembic's `context.configure`: false for all that is in Faultline's schema.

    :param name: Of what Alembic has found.
    :param kind: What it is: `schema`, `table`, `column`, …
    :param parents: What it belongs to.
    """
    if kind == "schema":
        return name != _SCHEMA
    schema = parents.get("schema_name")
    if schema is None and _default_schema() == _SCHEMA:
        return (name if kind == "table" else parents.get("table_name")) not in TABLES
    return schema != _SCHEMA


def _default_schema() -> str | None:
    """Where the login of the running migration finds tables without a schema; None: no environment of Alembic runs."""
    try:
        return context.get_context().dialect.default_schema_name
    except NameError:  # as Alembic says it
        return None
