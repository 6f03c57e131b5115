"""Draw numbers over time as a small curve. It stretches to any width; its line keeps its thickness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from faultline.explain.svg import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOP, _BOTTOM = 6.0, 98.0  # of 100


def curve(values: Sequence[float | None], *, description: str, tall: bool = False) -> Markup:
    """`description`: the curve in words. A value of None was not measured: the curve has a gap there."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    step = 100 / max(len(values) - 1, 1)
    points = [
        None if v is None else (number * step, _BOTTOM - (_BOTTOM - _TOP) * v / most) for number, v in enumerate(values)
    ]
    drawn = "".join(_stretch(stretch) for stretch in _unbroken(points))
    return Markup(  # noqa: S704 - figures, and a text that is escaped
        f'<svg class="spark{" spark-tall" if tall else ""}" viewBox="0 0 100 100" preserveAspectRatio="none" role="img"'
        f' aria-label="{escaped(description)}"><line class="base" vector-effect="non-scaling-stroke" x1="0" y1="99" x2="100"'
        f' y2="99"/>{drawn}</svg>'
    )


def _unbroken(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    stretches: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is not None:
            stretches[-1].append(point)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _stretch(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:  # a line needs two
        x, y = points[0]
        points = [(max(x - 0.4, 0), y), (min(x + 0.4, 100), y)]
    text = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return (
        f'<polygon class="area" points="{points[0][0]:.2f},{_BOTTOM:g} {text} {points[-1][0]:.2f},{_BOTTOM:g}"/>'
        f'<polyline class="curve" vector-effect="non-scaling-stroke" points="{text}"/>'
    )
