"""Small charts as SVG, readable on light and dark pages: bars that compare systems, lines that show how something grows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #8c959f; stroke-opacity: .35; stroke-width: 1 }
.range { stroke: #24292f; stroke-width: 1.5 }
.a { fill: #0969da; stroke: #0969da } .b { fill: #bf8700; stroke: #bf8700 } .c { fill: #8c959f; stroke: #8c959f }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .range { stroke: #d1d9e0 }
  .a { fill: #4493f8; stroke: #4493f8 } .b { fill: #d29922; stroke: #d29922 } .c { fill: #7d8590; stroke: #7d8590 }
}
</style>"""
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 760, 130, 90, 24, 52


@dataclass(frozen=True, slots=True)
class Bar:
    """One value with its spread; several parts are put end to end. Of single values, the one that is `ours` is coloured."""

    label: str
    parts: Sequence[float]
    least: float | None = None
    most: float | None = None
    ours: bool = False


def bars(title: str, unit: str, rows: Sequence[Bar], *, legend: Sequence[str] = (), logarithmic: bool = False) -> str:
    """Horizontal bars in the order given. On a logarithmic axis bars are lines' ends: their length is no proportion."""
    top = max([sum(row.parts) for row in rows] + [row.most or 0 for row in rows] + [1e-9])
    bottom = min([sum(row.parts) for row in rows if sum(row.parts) > 0] or [1.0]) / 1.5
    room = _WIDTH - _LEFT - _RIGHT

    def x(value: float) -> float:
        logarithm = math.log(max(value, bottom) / bottom) / math.log(top / bottom)
        return _LEFT + room * max(0.0, logarithm if logarithmic else value / top)

    height = _TOP + _ROW * len(rows) + 24
    out = [_open(height), _text(0, 16, title, "title"), *_legend(legend)]
    for tick in _ticks(bottom if logarithmic else 0.0, top, logarithmic=logarithmic):
        out.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP - 6}" y2="{height - 20}"/>')
        out.append(_text(x(tick), height - 6, _number(tick), "small", "middle"))
    out.append(_text(_WIDTH, height - 6, unit + (", logarithmic" if logarithmic else ""), "small", "end"))
    for number, row in enumerate(rows):
        y, at = _TOP + _ROW * number, 0.0
        out.append(_text(_LEFT - 8, y + 13, row.label, "", "end"))
        for part, style in zip(row.parts, "ab" if len(row.parts) > 1 or row.ours else "c", strict=False):
            start, at = (x(at) if at or not logarithmic else _LEFT), at + part
            width = max(0.5, x(at) - start)
            out.append(f'<rect class="{style}" x="{start:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 9}"/>')
        if row.least is not None and row.most is not None and row.most > row.least:
            middle = y + 3 + (_ROW - 9) / 2
            out.append(f'<line class="range" x1="{x(row.least):.1f}" x2="{x(row.most):.1f}" y1="{middle}" y2="{middle}"/>')
        out.append(_text(x(max(at, row.most or 0)) + 6, y + 13, _number(at), "small"))
    return "\n".join([*out, "</svg>\n"])


def lines(title: str, unit: str, varies: str, series: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """Up to three lines over a logarithmic x axis; a linear one where it begins with 0 and does not go far."""
    points = [point for _, line in series for point in line]
    places = sorted({at for at, _ in points})
    left, right = places[0], places[-1]
    if left == 0 and len(places) > 2 and right >= 10 * places[1]:
        # 0 stands as far to the left of the second place as that is, on the average, from the next.
        left = places[1] / (right / places[1]) ** (1 / (len(places) - 2))
    top = max([value for _, value in points] + [1e-9]) * 1.1
    height, base = 260, 220
    spread = math.log(right / left) if left > 0 and right > left else 0.0

    def x(at: float) -> float:
        linear = (at - left) / (right - left) if right > left else 0.5
        return 60 + (_WIDTH - 90) * (math.log(max(at, left) / left) / spread if spread else linear)

    def y(value: float) -> float:
        return base - (base - _TOP) * value / top

    out = [_open(height), _text(0, 16, title, "title"), *_legend([name for name, _ in series])]
    for tick in _ticks(0.0, top, logarithmic=False):
        out.append(f'<line class="grid" x1="60" x2="{_WIDTH - 30}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(_text(54, y(tick) + 4, _number(tick), "small", "end"))
    out += [_text(x(at), base + 16, _number(at), "small", "middle") for at in places]
    out.append(_text(_WIDTH, base + 34, f"{varies}; {unit}", "small", "end"))
    for (_, line), style in zip(series, "abc", strict=False):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line)
        out.append(f'<polyline class="{style} line" style="fill:none" points="{path}"/>')
        out += [f'<circle class="{style}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="3"/>' for at, value in line]
    return "\n".join([*out, "</svg>\n"])


def _open(height: int) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{_STYLE}'


def _legend(names: Sequence[str]) -> list[str]:
    out, at = [], 0
    for name, style in zip(names, "abc", strict=False):
        out.append(f'<rect class="{style}" x="{at}" y="26" width="10" height="10"/>')
        out.append(_text(at + 15, 35, name, "small"))
        at += 34 + 7 * len(name)
    return out


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _ticks(bottom: float, top: float, *, logarithmic: bool) -> list[float]:
    if logarithmic:
        tens = [10.0**power for power in range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)]
        steps = (1,) if top / bottom > 200 else (1, 2, 5)
        return [ten * step for ten in tens for step in steps if bottom <= ten * step <= top]
    step = 10 ** math.floor(math.log10(top))
    step = next(size for size in (step / 5, step / 2, step, 2 * step) if top / size <= 6)
    return [step * number for number in range(int(top / step) + 1)]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
