"""Parts of a picture: per cent across and pixels down, so that it fits any width and its text keeps its size.

The timelines of the drills and the dashboard use them. All text is escaped here.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Characters that XML cannot contain.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

#: A narrower picture scrolls.
WIDTH_MIN = 440
TEXT_WIDTH = 6.6  # average pixels of a character, to see which labels would touch
_STEPS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800,
    3600, 7200, 21600, 86400
)  # fmt: skip
_TICKS_MAX = 9

#: Each is drawn around its point.
SHAPES = {
    "claim": '<circle class="claim" r="4.5"/>',
    "reap": '<path class="reap" d="M0 -10V10"/>',
    "refused": '<path class="refused" d="M-5.5 -5.5L5.5 5.5M5.5 -5.5L-5.5 5.5"/>',
    "ledger": '<circle class="ledger" r="6.5"/>',
    "end": '<circle class="end" r="4.5"/>',
    "fail": '<circle class="fail" r="5"/>',
    "queued": '<path class="queued" d="M0 -4V4"/>',
    "death": '<path class="death" d="M0 -8V8"/>',
    "right": '<path class="head" d="M-6 0L-13 -4V4Z"/>',
    "down": '<path class="head" d="M0 -6L-4 -13H4Z"/>',
    "signal": '<path class="signal" d="M0 -5L5 0L0 5L-5 0Z"/>',
    "beat": '<path class="beat" d="M0 8V13"/>',
    "run": '<rect class="run" x="-9" y="-6" width="18" height="12" rx="3"/>',
    "beyond": '<rect class="beyond" x="-9" y="-6" width="18" height="12" rx="3"/>',
    "hatched": '<rect class="hatched" fill="url(#hatch)" x="-9" y="-6" width="18" height="12" rx="3"/>',
}
#: The filling of waits. A page that shows one has it somewhere.
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch-ground" width="6" height="6"/><line class="hatch-line" x1="0" y1="0" x2="0" y2="6"/>'
    "</pattern></defs>"
)

STYLE = f"""
.lanes {{ display: block; width: 100%; min-width: {WIDTH_MIN}px; overflow: visible; }}
.lanes text {{ font-size: 12px; fill: var(--soft); paint-order: stroke; stroke: var(--panel); stroke-width: 4px;
  stroke-linejoin: round; }}
.lanes .job {{ font-weight: 600; fill: var(--ink); }} .lanes .who {{ fill: var(--ink); }}
.grid {{ stroke: var(--line); }} .edge {{ stroke: var(--pale); }}
"""


@dataclass(frozen=True, slots=True)
class Label:
    """A label at a mark. Anchor `start`: its left end is at x, `end`: its right end."""

    x: float
    text: str
    anchor: str
    kind: str
    shift: int = 0

    def span(self, width_min: int) -> tuple[float, float]:
        """Its left and right end in pixels, in the narrowest picture."""
        at, width = self.x * width_min / 100 + self.shift, len(self.text) * TEXT_WIDTH + 8
        left = {"start": at, "middle": at - width / 2, "end": at - width}[self.anchor]
        return left, left + width


def label_at(x: float, text: str, kind: str, *, beside: int = 0, width_min: int = WIDTH_MIN) -> Label:
    """Under its mark, or beside it: right, or left if `beside` is negative. Turned inwards at the edge."""
    half = len(text) * TEXT_WIDTH / 2 / width_min * 100
    if beside:
        right = x + 2 * half < 100 if beside > 0 else x - 2 * half < 0  # noqa: PLR2004 - per cent
        return Label(x, text, "start" if right else "end", kind, abs(beside) if right else -abs(beside))
    anchor = "start" if x < half else "end" if x > 100 - half else "middle"
    return Label(x, text, anchor, kind, {"start": -6, "middle": 0, "end": 6}[anchor])


def in_rows(labels: Iterable[Label], nearest: Collection[str] = (), width_min: int = WIDTH_MIN) -> list[list[Label]]:
    """Spread labels over few rows so that none touch; the kinds in `nearest` go into the first."""
    rows: list[list[tuple[tuple[float, float], Label]]] = []
    spans = [(label.span(width_min), label) for label in labels]
    for span, label in sorted(spans, key=lambda found: (found[1].kind not in nearest, found[0])):
        for row in rows:
            if all(span[1] <= other[0] or other[1] <= span[0] for other, _ in row):
                row.append((span, label))
                break
        else:
            rows.append([(span, label)])
    return [[label for _, label in row] for row in rows]


def apart(labels: Iterable[Label], width_min: int) -> list[Label]:
    """Those that do not touch an earlier one, in a picture of this width."""
    kept: list[tuple[tuple[float, float], Label]] = []
    for label in labels:
        start, end = label.span(width_min)
        if all(end <= other[0] or other[1] <= start for other, _ in kept):
            kept.append(((start, end), label))
    return [label for _, label in kept]


def escaped(value: object) -> str:
    """Any value as text of a page, in an attribute or between tags."""
    return html.escape(_UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1:g}" x2="{x2:.2f}%" y2="{y2:g}"/>'


def text(label: Label, y: float) -> str:
    return (
        f'<text class="{label.kind}" x="{label.x:.2f}%" y="{y:g}" dx="{label.shift}" text-anchor="{label.anchor}">'
        f"{escaped(label.text)}</text>"
    )


def bar(start: float, end: float, middle: float, thick: int, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{start:.2f}%" y="{middle - thick / 2:g}" width="{max(end - start, 0.3):.2f}%" '
        f'height="{thick}" rx="{thick // 4}"/>'
    )


def hatched(start: float, end: float, middle: float, thick: int) -> str:
    """A bar for a wait. It needs `HATCH`."""
    return bar(start, end, middle, thick, "hatched").replace("<rect ", '<rect fill="url(#hatch)" ')


def mark(shape: str, x: float, y: float, what: str) -> str:
    """A shape, with its meaning as a tooltip."""
    title = f"<title>{escaped(what)}</title>"
    return f'<svg class="mark-{shape}" x="{x:.2f}%" y="{y:g}" overflow="visible">{title}{SHAPES[shape]}</svg>'


def ticks(start: float, end: float, *, of: float | None = None) -> list[float]:
    """Round seconds between two times, not too many for a picture that shows `of` seconds."""
    shown = of or end - start
    step = next((step for step in _STEPS if shown / step <= _TICKS_MAX), shown)
    return [at for number in range(int(start / step), int(end / step) + 2) if start <= (at := number * step) <= end]
