"""What must always be true of the database, as named queries that must return no rows. Everyone checks the same files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

from faultline.store.statement import Statement


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, with some of the rows that break it."""

    invariant: str
    rows: list[tuple[Any, ...]]


_ROWS_SHOWN = 10


@cache
def names() -> tuple[str, ...]:
    files = resources.files("faultline.schema").joinpath("invariants").iterdir()
    return tuple(sorted(file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql")))


def invariant(name: str) -> Statement[Violation | None]:
    text = resources.files("faultline.schema").joinpath("invariants", f"{name}.sql").read_text()
    return Statement(
        name=name,
        # Materialized: with the limit in sight the planner hopes for rows that are not there, and compares each with each.
        # psycopg reads a percent sign as a parameter.
        sql=(
            f"with broken as materialized ({text.strip().removesuffix(';')}\n) select * from broken limit {_ROWS_SHOWN}"
        ).replace("%", "%%"),
        params=(),
        read=lambda rows: Violation(name, rows) if rows else None,
        repeatable=True,
        reads=True,
    )


def violations(
    run: Callable[[Statement[Violation | None]], Violation | None], *, without: tuple[str, ...] = ()
) -> list[Violation]:
    """Check every invariant but those named in `without`. An empty list is what everyone wants to see."""
    found = (run(invariant(name)) for name in names() if name not in without)
    return [violation for violation in found if violation is not None]
