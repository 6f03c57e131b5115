"""A picture of lanes: bars and marks at their times, labels in rows below them, and an arrow where a job was taken over.

The picture of a job and the timelines of drills are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from faultline.explain.svg import WIDTH_MIN, Label, bar, hatched, in_rows, label_at, line, mark, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ROW = 16
#: Pixels between two leases in the narrowest picture: enough for an arrow from the side; so few that they are one line.
_ROOM_BESIDE, _STRAIGHT = 14.5, 0.7
_FINAL = ("refused-name", "ledger-name", "fail-name")


@dataclass(slots=True)
class Lane:
    """One owner's time with the job. Horizontal positions are in per cent."""

    #: Its name, as markup.
    name: str
    width_min: int = WIDTH_MIN
    #: Since when the job had waited for this owner.
    waited_from: float | None = None
    #: When this owner lost the job, and when it got it, with a text.
    given: float | None = None
    taken: tuple[float, str] | None = None
    bars: list[tuple[float, float, int, str]] = field(default_factory=list)
    marks: list[tuple[str, float, str]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def mark(self, shape: str, x: float, what: str, label: str = "", *, kind: str = "", beside: int = 0) -> None:
        """A shape, and perhaps a label beside it."""
        self.marks.append((shape, x, what))
        if label:
            self.labels.append(label_at(x, label, kind or f"{shape}-name", beside=beside, width_min=self.width_min))


class Picture:
    """What is drawn later lies above."""

    def __init__(self, width_min: int = WIDTH_MIN) -> None:
        self.below: list[str] = []
        self.above: list[str] = []
        self._width_min = width_min

    def markup(self) -> str:
        return "".join(self.below) + "".join(self.above)

    def write(self, labels: Iterable[Label], y: float) -> float:
        """Labels in rows, none touching another. Returns their height."""
        rows = in_rows(list(labels), nearest=_FINAL, width_min=self._width_min)
        for number, row in enumerate(rows):
            self.above += [text(label, y + number * _ROW) for label in row]
        return len(rows) * _ROW

    def draw(self, lanes: Sequence[Lane], y: float) -> float:
        """Draw the lanes of one job from here down. Returns where they end."""
        middles: list[float] = []
        for lane in lanes:
            middles.append(y + 32)
            self.above.append(f'<text class="who" x="0" y="{y + 14:g}">{lane.name}</text>')
            if lane.waited_from is not None and lane.taken is not None:
                self.below.append(line(lane.waited_from, y + 32, lane.taken[0], y + 32, "wait"))
            for start, end, thick, kind in lane.bars:
                drawn = hatched(start, end, y + 32, thick) if kind == "hatched" else bar(start, end, y + 32, thick, kind)
                self.above.append(drawn)
            self.above += [mark(shape, x, y + 32, what) for shape, x, what in lane.marks]
            y += 56 + self.write(lane.labels, y + 57)
        for (before, start), (after, end) in pairwise(zip(lanes, middles, strict=True)):
            self._draw_takeover(before, start, after, end)
        return y

    def _draw_takeover(self, before: Lane, start: float, after: Lane, end: float) -> None:
        """An arrow from the end of one lease down to the next claim."""
        if after.taken is None or before.given is None:
            return
        given, (taken, what) = before.given, after.taken
        away = abs(taken - given) * self._width_min / 100
        bend = end if away >= _ROOM_BESIDE or away <= _STRAIGHT else end - 22
        self.below += [line(given, start, given, bend, "link"), line(given, bend, taken, bend, "link")]
        if bend < end:
            self.below.append(line(taken, bend, taken, end, "link"))
        self.above.append(mark("right" if away >= _ROOM_BESIDE else "down", taken, end, what))
