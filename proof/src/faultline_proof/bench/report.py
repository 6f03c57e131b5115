"""What one part of the bench has found: figures, tables and curves; lines for people, JSON for programs.

The JSON of every part that is written with `Report` has the same keys, an empty list where there is nothing:

    {"part": "growth", "quick": false, "machine": {"processor", "cores", "memory_gb", "python", "postgres", "at", "commit"},
     "figures": [{"name", "value", "unit", "goal", "good"}],
     "tables":  [{"name", "columns": ["...", ...], "rows": [["...", 1.5, ...], ...]}],
     "curves":  [{"name", "varies", "unit", "points": [{"at": 10000, "value": 12.3, ...}], "goal", "ok"}]}

`varies` says what `at` counts. A point may say more beside its `value`, under names with their unit in them. `goal` is a
sentence, empty where there is none; `good` and `ok` are then null. A point that could not be measured has `value` null and
says why in `missing`: one that failed must not take the others with it.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from faultline_proof.bench.protocol import Figure

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: list[str]
    rows: list[list[str | float]]


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    varies: str
    unit: str
    points: list[Point]
    goal: str = ""
    ok: bool | None = None


@dataclass(slots=True)
class Report:
    part: str
    machine: dict[str, Any]
    quick: bool = False
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As JSON can say it: what is no number there is null."""
        found: dict[str, Any] = _plain(asdict(self))
        return found

    def lines(self) -> Iterator[str]:
        yield from (line_of(figure) for figure in self.figures)
        for table in self.tables:
            yield from ("", f"{table.name}:")
            yield from _aligned([list(table.columns), *([_shown(cell) for cell in row] for row in table.rows)])
        for curve in self.curves:
            mark = {True: ": ok", False: ": MISSED", None: ""}[curve.ok]
            yield from ("", f"{curve.name} ({curve.unit}){'; goal: ' + curve.goal if curve.goal else ''}{mark}")
            names = list(dict.fromkeys(name for point in curve.points for name in point if name not in ("at", "value")))
            head = [curve.varies, curve.unit, *(name.replace("_", " ") for name in names)]
            rows = [[_shown(point.get(name, "")) for name in ("at", "value", *names)] for point in curve.points]
            yield from _aligned([head, *rows])


def line_of(figure: Figure) -> str:
    mark = {True: "ok", False: "MISSED", None: ""}[figure.good]
    return f"{figure.name:72} {figure.value:12,.2f} {figure.unit:7} {figure.goal:16} {mark}".rstrip()


def machine(connection: psycopg.Connection) -> dict[str, Any]:
    """On what it was measured."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "python": platform.python_version(),
        "postgres": str(connection.info.parameter_status("server_version")),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
    }


def commit() -> str | None:
    """What is measured. None where it was not checked out with git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    table = Path("/proc/cpuinfo")
    for line in table.read_text().splitlines() if table.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _shown(cell: Any) -> str:
    if cell is None or cell != cell:  # noqa: PLR0124 - what is no number
        return "-"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    return f"{cell:.2f}" if abs(cell) >= 1 else f"{cell:.3f}"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            f"{cell:>{width}}" if place else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join([first, *rest])
