"""Keep Alembic's autogenerate away from Faultline's schema: it would drop the tables, which no model describes.

    context.configure(..., include_schemas=True, include_name=include_name)

A login that is named `faultline` finds that schema first, as if it had no name: set `search_path` for Alembic there.
`faultline migrate`, or `faultline.migrate()`, changes that schema, and nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMA = "faultline"


def include_name(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
    """For `include_name` of Alembic's `context.configure`: false for all that is in Faultline's schema.

    :param name: Of what Alembic has found.
    :param kind: What it is: `schema`, `table`, `column`, …
    :param parents: What it belongs to.
    """
    return name != _SCHEMA if kind == "schema" else parents.get("schema_name") != _SCHEMA
