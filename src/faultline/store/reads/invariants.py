"""What must always be true in the database, as named queries that must return no rows. All checks use the same files."""

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
    """A violated invariant, with some of the rows that violate it."""

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
        # Materialized: with a limit the planner expects rows early, and compares each row with each. Doubled percent signs:
        # psycopg reads one as a parameter.
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
    """Check every invariant except those in `without`. The list should be empty."""
    found = (run(invariant(name)) for name in names() if name not in without)
    return [violation for violation in found if violation is not None]
