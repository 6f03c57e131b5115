"""The ticks of schedules as strips of cells, an hour or a day each: what was done, missed and failed, and what is planned.

All strips of a page have the same cells, so that one below another shows what happened at the same time. A cell that stands
for several ticks shows the worst; its title counts them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from faultline.explain.svg import apart, escaped, label_at, line, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: What became of ticks, worst first. `running`: its job has not ended. `planned`: its time has not come.
FATES = ("failed", "missed", "skipped", "cancelled", "running", "done", "planned")
Unit = Literal["hour", "day"]
#: Cells before that of now, and after it.
_SIZES: dict[Unit, tuple[int, int]] = {"hour": (35, 12), "day": (27, 7)}
_HEIGHT = 18
_GAP_SHARE = 0.12
_HEAD_HEIGHT = 16
#: The strip of a list on a small screen.
_WIDTH_MIN = 270


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of all strips of a page."""

    unit: Unit
    now: datetime
    first: datetime
    length: timedelta
    cells: int

    @classmethod
    def around(cls, now: datetime, unit: Unit) -> Grid:
        """Begins on a whole hour or day of UTC, as all times of the dashboard."""
        now = now.astimezone(UTC)
        before, after = _SIZES[unit]
        whole = now.replace(minute=0, second=0, microsecond=0)
        length = timedelta(hours=1)
        if unit == "day":
            whole, length = whole.replace(hour=0), timedelta(days=1)
        return cls(unit, now, whole - before * length, length, before + 1 + after)

    @property
    def end(self) -> datetime:
        return self.first + self.cells * self.length

    def start(self, cell: int) -> datetime:
        return self.first + cell * self.length

    def cell_of(self, at: datetime) -> int | None:
        """None: not on the page."""
        cell = (at - self.first) // self.length
        return cell if 0 <= cell < self.cells else None

    def coming(self) -> Iterable[int]:
        """The cells that have a part in the future."""
        now = self.cell_of(self.now)
        return range(self.cells if now is None else now, self.cells)

    def x(self, at: datetime) -> float:
        """In per cent of the width."""
        return 100 * ((at - self.first) / (self.end - self.first))

    def head(self) -> Markup:
        """The hours or days above the strips; labels that would touch are left out."""
        labels = [
            label_at(self.x(start), self._named(start), "when", width_min=_WIDTH_MIN)
            for start in map(self.start, range(self.cells))
            if self._is_named(start)
        ]
        drawn = "".join(text(label, _HEAD_HEIGHT - 4) for label in apart(labels, _WIDTH_MIN))
        return _svg("calendar calendar-head", _HEAD_HEIGHT, "", drawn)

    def _is_named(self, start: datetime) -> bool:
        return start.hour % 6 == 0 if self.unit == "hour" else start.weekday() == 0

    def _named(self, start: datetime) -> str:
        return f"{start:%H:%M}" if self.unit == "hour" and start.hour else f"{start:%d %b}".lstrip("0")


def draw(grid: Grid, cells: Mapping[int, Mapping[str, int]], name: str, *, read_from: int = 0) -> Markup:
    """The strip of one schedule: what became of its ticks, by cell. A number of 0 stands for an unknown one.

    `read_from`: nothing is known of the cells before this one.
    """
    width = 100 / grid.cells
    drawn = []
    for cell in range(grid.cells):
        found = cells.get(cell, {})
        worst = next((fate for fate in FATES if fate in found), "none")
        said = _said(grid, cell, found)
        if cell < read_from:
            worst, said = "unread", "too many ticks to show: see the list of ticks"
        title = f"<title>{escaped(said)}</title>"
        drawn.append(
            f'<rect class="tick tick-{worst}" x="{cell * width:.3f}%" y="1" width="{width * (1 - _GAP_SHARE):.3f}%"'
            f' height="{_HEIGHT - 2}" rx="1.5">{title}</rect>'
        )
    drawn.append(line(grid.x(grid.now), 0, grid.x(grid.now), _HEIGHT, "now"))
    return _svg("calendar", _HEIGHT, f"Ticks of {name}: {summed(cells)}", "".join(drawn))


def summed(cells: Mapping[int, Mapping[str, int]]) -> str:
    """In words: `3 done, 1 failed, planned`."""
    counts: Counter[str] = Counter()
    for found in cells.values():
        counts.update(found)
    return _counted(counts)


def legend(fates: Sequence[str] = FATES) -> list[tuple[str, Markup]]:
    """The names of the fates, each with a cell that shows it."""
    shape = (
        '<svg width="12" height="12" aria-hidden="true"><rect class="tick tick-{}" width="12" height="12" rx="1.5"/></svg>'
    )
    return [(fate, Markup(shape.format(fate))) for fate in fates]  # noqa: S704 - words of our own


def _said(grid: Grid, cell: int, found: Mapping[str, int]) -> str:
    start = grid.start(cell)
    when = f"{start:%Y-%m-%d %H:%M} UTC" if grid.unit == "hour" else f"{start:%a %Y-%m-%d}"
    return f"{when}: {_counted(found)}"


def _counted(found: Mapping[str, int]) -> str:
    parts = [f"{found[fate]:,} {fate}" if found[fate] else fate for fate in FATES if fate in found]
    return ", ".join(parts) or "no ticks"


def _svg(kind: str, height: int, description: str, inner: str) -> Markup:
    role = f'role="img" aria-label="{escaped(description)}"' if description else 'aria-hidden="true"'
    return Markup(f'<svg class="{kind}" width="100%" height="{height}" {role}>{inner}</svg>')  # noqa: S704 - escaped
