"""Pieces of a picture over time: per cent across and pixels down, so that it fits any width and its text keeps its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.proof.page import escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Narrower than this a picture scrolls.
WIDTH_MIN = 440
TEXT_WIDTH = 6.6  # of a character, on average, in pixels: enough to tell which labels would touch
_STEPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_TICKS_MAX = 9

STYLE = f"""
.lanes {{ display: block; width: 100%; min-width: {WIDTH_MIN}px; overflow: visible; }}
.lanes text {{ font-size: 12px; fill: var(--soft); paint-order: stroke; stroke: var(--panel); stroke-width: 4px;
  stroke-linejoin: round; }}
.lanes .job {{ font-weight: 600; fill: var(--ink); }} .lanes .who {{ fill: var(--ink); }}
.grid {{ stroke: var(--line); }} .edge {{ stroke: var(--pale); }}
"""


@dataclass(frozen=True, slots=True)
class Label:
    """A word beside a mark. `start`: its left end stands there, `end`: its right end."""

    x: float
    text: str
    anchor: str
    kind: str
    shift: int = 0

    @property
    def span(self) -> tuple[float, float]:
        """From where to where it reaches, in pixels, where the picture is at its narrowest."""
        at, width = self.x * WIDTH_MIN / 100 + self.shift, len(self.text) * TEXT_WIDTH + 8
        left = {"start": at, "middle": at - width / 2, "end": at - width}[self.anchor]
        return left, left + width


def in_rows(labels: Iterable[Label], nearest: Collection[str] = ()) -> list[list[Label]]:
    """Spread labels over as few rows as keep them from touching; those of the kinds in `nearest` into the first."""
    rows: list[list[Label]] = []
    for label in sorted(labels, key=lambda label: (label.kind not in nearest, label.span)):
        for row in rows:
            if all(label.span[1] <= other.span[0] or other.span[1] <= label.span[0] for other in row):
                row.append(label)
                break
        else:
            rows.append([label])
    return rows


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1:g}" x2="{x2:.2f}%" y2="{y2:g}"/>'


def text(label: Label, y: float) -> str:
    return (
        f'<text class="{label.kind}" x="{label.x:.2f}%" y="{y:g}" dx="{label.shift}" text-anchor="{label.anchor}">'
        f"{escaped(label.text)}</text>"
    )


def ticks(start: float, end: float) -> list[float]:
    """Round seconds between two times, not too many."""
    step = next((step for step in _STEPS if (end - start) / step <= _TICKS_MAX), end - start)
    return [at for number in range(int(start / step), int(end / step) + 2) if start <= (at := number * step) <= end]
