"""A soak over time: the jobs finished each second, and below them a row of marks for each kind of fault."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from faultline.explain import svg
from faultline.explain.svg import Label, escaped, line, text, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

_CURVE = 150  # pixels
_ROW = 36
_AXIS = 28

STYLE = f"""{svg.STYLE}
.area {{ fill: var(--lease); opacity: 0.18; }} .curve {{ fill: none; stroke: var(--lease); stroke-width: 1.5; }}
.fault {{ stroke: var(--fault); stroke-width: 2; }}
"""


class Sample(NamedTuple):
    """How many jobs were acknowledged and finished, some seconds from the start."""

    at: float
    acknowledged: int
    finished: int


def draw(samples: Sequence[Sample], moments: Sequence[tuple[float, str]], *, told: str) -> str:
    """`moments`: when a fault of which kind took effect. `told`: the same in words."""
    if len(samples) < 2:  # noqa: PLR2004 - a rate lies between two of them
        return "<p>Too short to be drawn.</p>"
    end = samples[-1].at
    rates = [((a.at + b.at) / 2, max(0.0, (b.finished - a.finished) / (b.at - a.at))) for a, b in pairwise(samples)]
    kinds = list(dict.fromkeys(kind for _, kind in moments))
    bottom = _CURVE + 16 + _ROW * len(kinds)
    drawn = [line(100 * at / end, 0, 100 * at / end, bottom, "grid") for at in ticks(0, end)]
    drawn.append(_curve([(100 * at / end, rate) for at, rate in rates]))
    for row, kind in enumerate(kinds):
        places = [100 * at / end for at, happened in moments if happened == kind]
        drawn.append(_marks(kind, places, _CURVE + 10 + _ROW * row))
    names = [Label(100 * at / end, f"{at:g} s", "middle" if at else "start", "axis") for at in ticks(0, end)]
    drawn += [text(name, bottom + 20) for name in names]
    return (
        f'<svg class="lanes" role="img" height="{bottom + _AXIS}" aria-labelledby="chart told">'
        '<title id="chart">Jobs finished each second, and the faults meanwhile</title>'
        f'<desc id="told">{escaped(told)}</desc>{"".join(drawn)}</svg>'
    )


def _curve(rates: list[tuple[float, float]]) -> str:
    """The only part that is stretched to the width: its line keeps its thickness, and its text stands outside."""
    most = max(1.0, *(rate for _, rate in rates))
    points = " ".join(f"{x:.2f},{100 - 85 * rate / most:.2f}" for x, rate in rates)
    return (
        f'<svg width="100%" height="{_CURVE}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f'<polygon class="area" points="{rates[0][0]:.2f},100 {points} {rates[-1][0]:.2f},100"/>'
        f'<polyline class="curve" vector-effect="non-scaling-stroke" points="{points}"/></svg>'
        + line(0, _CURVE, 100, _CURVE, "edge")
        + text(Label(0, f"{most:,.0f} jobs a second", "start", "who"), 12)
    )


def _marks(kind: str, places: list[float], y: float) -> str:
    name = text(Label(0, f"{kind}: {len(places)}", "start", "axis"), y + 12)
    return name + "".join(line(x, y + 18, x, y + 28, "fault") for x in places)
