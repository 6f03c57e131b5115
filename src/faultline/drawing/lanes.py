"""The life of a job as a picture: one lane for each epoch, refused writes in red.

Drawn with the same shapes as the timelines of the drills. All that is horizontal is a percentage of time, so it fits any
width; its text keeps its size and is escaped.
"""

from __future__ import annotations

from datetime import UTC
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from faultline.drawing import svg
from faultline.drawing.epochs import EpochEnd
from faultline.drawing.scale import Scale
from faultline.drawing.svg import SHAPES, Label, apart, bar, escaped, in_rows, label_at, line, text
from faultline.drawing.words import duration, moment, times, words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from faultline.core.model import JobRecord
    from faultline.drawing.epochs import Epoch

LANES_MAX = 12
_WIDTH_MIN = 290  # of a phone's screen, without its margins
_WIDE = 600  # narrower than this, the style leaves out the minor names of times
_ROW = 16
_ROOM_BESIDE = 5.0  # per cent between two leases, for an arrow from the side
_STRAIGHT = 0.25  # per cent: closer than this they are one line
_FINAL = ("refused-name", "ledger-name", "fail-name")
#: How an epoch's end is marked, and what stands beside the mark.
_MARKS = {
    EpochEnd.SUCCEEDED: ("ledger", "in the ledger"),
    EpochEnd.FAILED: ("fail", "attempt failed"),
    EpochEnd.CANCELLED: ("end", "cancelled"),
    EpochEnd.RECOVERED: ("reap", "voided by faultline recover"),
    EpochEnd.RECONCILED: ("reap", "reconciled"),
}
_LEGEND = {
    "claim": "claimed",
    "run": "running, holds the lease",
    "reap": "lease expired, job reaped",
    "beyond": "no longer holds the lease",
    "refused": "write refused",
    "fail": "attempt failed",
    "ledger": "completed: row in the ledger",
}


def letters(epochs: Sequence[Epoch]) -> dict[str, str]:
    """A short name for each worker process of a job, in the order in which they came: A, B, …, Z, 27, 28."""
    workers = dict.fromkeys(worker_of(epoch.owner) for epoch in epochs if epoch.owner)
    return {worker: chr(ord("A") + number) if number < 26 else str(number + 1) for number, worker in enumerate(workers)}  # noqa: PLR2004 - letters


def worker_of(owner: str | None) -> str:
    """An owner is a worker's id and the number of its claim."""
    return (owner or "").split("/", 1)[0]


def legend(epochs: Sequence[Epoch]) -> list[tuple[Markup, str]]:
    """The shapes that the picture holds, and what they mean."""
    shown = {"claim", "run"}
    for epoch in epochs:
        shown |= {"reap"} if epoch.end is EpochEnd.REAPED else set()
        shown |= {"refused", "beyond"} if epoch.refusals else set()
        shown |= {_MARKS[epoch.end][0]} if epoch.end in _MARKS else set()
    return [
        # Shapes are our own markup.
        (Markup(SHAPES[shape]), meaning)  # noqa: S704
        for shape, meaning in _LEGEND.items()
        if shape in shown
    ]


def draw(job: JobRecord, epochs: Sequence[Epoch], *, now: datetime, told: str) -> Markup:
    """The picture; `told` is the same in words, for those who do not see it."""
    drawing = _Drawing(job, epochs[-LANES_MAX:], letters(epochs), now)
    return Markup(  # noqa: S704 - every text in it was escaped when it was put in
        f'<svg class="lanes" role="img" height="{drawing.height:g}" aria-labelledby="lanes-title lanes-told">'
        f'<title id="lanes-title">The epochs of this job</title><desc id="lanes-told">{escaped(told)}</desc>'
        f"{drawing.markup()}</svg>"
    )


def held(epoch: Epoch, now: datetime) -> tuple[datetime, datetime] | None:
    """From when to when others could not have the job; None where it is not known."""
    if epoch.claimed_at is None:
        return None
    return epoch.claimed_at, epoch.ended_at or now


class _Drawing:
    """Put together from top to bottom; what is drawn later lies above."""

    def __init__(self, job: JobRecord, epochs: Sequence[Epoch], names: Mapping[str, str], now: datetime) -> None:
        self._names = names
        self._now = now
        self._midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self._scale = _scale(job, epochs, now, self._seconds)
        self._below: list[str] = []
        self._above: list[str] = []
        y = 4.0
        middles: list[float] = []
        for number, epoch in enumerate(epochs):
            middles.append(y + 32)
            y = self._draw_lane(epoch, y, enqueued=job.created_at if number == 0 and epoch.claimed_at else None)
        for (before, start), (after, end) in pairwise(zip(epochs, middles, strict=True)):
            self._draw_takeover(before, start, after, end)
        if any(epoch.end is EpochEnd.RUNNING for epoch in epochs):
            self._below.append(line(self._x(now), 0, self._x(now), y + 6, "now"))
        self._draw_axis(y + 6)
        self.height = y + 34

    def markup(self) -> str:
        return "".join(self._below) + "".join(self._above)

    def _seconds(self, at: datetime) -> float:
        return (at - self._midnight).total_seconds()

    def _x(self, at: datetime) -> float:
        return self._scale.x(self._seconds(at))

    def _draw_axis(self, bottom: float) -> None:
        grid = []
        ticks = self._scale.ticks()
        fine = any(not float(at).is_integer() for at in ticks)
        names = [(self._scale.x(at), _time_of_day(at, fine=fine)) for at in ticks]
        grid += [line(x, 0, x, bottom, "grid") for x, _ in names]
        waits = []
        for piece in self._scale.cuts:
            start, end = self._scale.x(piece.start), self._scale.x(piece.end)
            grid.append(f'<rect class="cut" x="{start:.2f}%" y="0" width="{end - start:.2f}%" height="{bottom:g}"/>')
            waits.append(self._axis_label((start + end) / 2, duration(piece.end - piece.start), "axis waited"))
        shown = apart([*waits, *(self._axis_label(x, name, "axis") for x, name in names)], _WIDTH_MIN)
        more = apart([*shown, *(self._axis_label(x, name, "axis minor") for x, name in names)], _WIDE)
        self._above += [text(label, bottom + 20) for label in more]
        self._below[:0] = [*grid, line(0, bottom, 100, bottom, "edge")]

    def _axis_label(self, x: float, name: str, kind: str) -> Label:
        return label_at(x, name, kind, width_min=_WIDTH_MIN)

    def _draw_lane(self, epoch: Epoch, y: float, *, enqueued: datetime | None) -> float:
        middle = y + 32
        name = self._names.get(worker_of(epoch.owner))
        renewed = f" \N{MIDDLE DOT} renewed {times(epoch.renewals)}" if epoch.renewals else ""
        self._above.append(
            f'<text class="who" x="0" y="{y + 14:g}"><tspan class="token">token {epoch.token}</tspan>'
            f"<tspan> \N{MIDDLE DOT} worker {escaped(name or 'unknown')}{renewed}</tspan></text>"
        )
        if enqueued is not None and epoch.claimed_at is not None:
            self._below.append(line(self._x(enqueued), middle, self._x(epoch.claimed_at), middle, "wait"))
            self._above.append(svg.mark("queued", self._x(enqueued), middle, f"enqueued, {moment(enqueued)}"))
        self._draw_bars(epoch, middle)
        rows = in_rows(self._draw_marks(epoch, middle), nearest=_FINAL, width_min=_WIDTH_MIN)
        for number, row in enumerate(rows):
            self._above += [text(label, middle + 25 + number * _ROW) for label in row]
        return middle + 24 + len(rows) * _ROW

    def _draw_bars(self, epoch: Epoch, middle: float) -> None:
        """Solid while the lease was good, pale from then on until the worker was last heard of."""
        span = held(epoch, self._now)
        last = max((write.at for write in epoch.refusals), default=None)
        if span is None:
            if last is not None:
                first = min(write.at for write in epoch.refusals)
                self._above.append(bar(self._x(first), self._x(last), middle, 12, "beyond"))
            return
        claimed, over = span
        expires = epoch.lease_expires_at
        if expires is not None and epoch.end in (EpochEnd.RUNNING, EpochEnd.REAPED):
            if expires > over:
                self._above.append(bar(self._x(over), self._x(expires), middle, 4, "lease"))
            good = min(over, max(expires, claimed))
        else:
            good = over
        end = max(filter(None, (over, last)))
        if end > good:
            self._above.append(bar(self._x(good), self._x(end), middle, 12, "beyond"))
        self._above.append(bar(self._x(claimed), self._x(good), middle, 12, "run"))

    def _draw_marks(self, epoch: Epoch, middle: float) -> list[Label]:
        labels = []
        if epoch.claimed_at is not None:
            self._mark("claim", epoch.claimed_at, middle, "claimed")
        if epoch.end is EpochEnd.REAPED and epoch.ended_at is not None:
            because = words(epoch.because)
            self._mark("reap", epoch.ended_at, middle, f"reaped: {because}")
            labels.append(self._label(epoch.ended_at, because or "reaped", "reap-name", beside=-6))
        elif epoch.end in _MARKS and epoch.ended_at is not None:
            shape, word = _MARKS[epoch.end]
            self._mark(shape, epoch.ended_at, middle, word)
            labels.append(self._label(epoch.ended_at, word, f"{shape}-name"))
        for write in epoch.refusals:
            why = words(write.reason)
            self._mark("refused", write.at, middle, f"{write.verb} refused: {why}")
            labels.append(self._label(write.at, f"{write.verb} refused", "refused-name"))
        return labels

    def _draw_takeover(self, before: Epoch, start: float, after: Epoch, end: float) -> None:
        """From the end of one lease down to the next claim."""
        if after.claimed_at is None or before.ended_at is None:
            return
        given, taken = self._x(before.ended_at), self._x(after.claimed_at)
        away = abs(taken - given)
        if away >= _ROOM_BESIDE:
            self._below += [line(given, start, given, end, "link"), line(given, end, taken, end, "link")]
        else:
            bend = end - 22 if away > _STRAIGHT else end
            self._below += [line(given, start, given, bend, "link"), line(given, bend, taken, bend, "link")]
            self._below.append(line(taken, bend, taken, end, "link"))
        shape = "right" if away >= _ROOM_BESIDE else "down"
        self._above.append(svg.mark(shape, taken, end, f"taken over, {moment(after.claimed_at)}"))

    def _mark(self, shape: str, at: datetime, y: float, what: str) -> None:
        self._above.append(svg.mark(shape, self._x(at), y, f"{what}, {moment(at)}"))

    def _label(self, at: datetime, name: str, kind: str, *, beside: int = 0) -> Label:
        return label_at(self._x(at), name, kind, beside=beside, width_min=_WIDTH_MIN)


def _scale(job: JobRecord, epochs: Sequence[Epoch], now: datetime, seconds: Callable[[datetime], float]) -> Scale:
    spans: list[tuple[float, float]] = []
    times = [job.created_at] if epochs and epochs[0].token == 1 else []
    for epoch in epochs:
        last = [write.at for write in epoch.refusals]
        span = held(epoch, now)
        if epoch.end is EpochEnd.RUNNING and epoch.lease_expires_at is not None:
            last.append(epoch.lease_expires_at)
        known = [*(span or filter(None, [epoch.ended_at])), *last]
        if known:
            spans.append((seconds(min(known)), seconds(max(known))))
            times += [min(known), max(known)]
    times = times or [job.created_at, now]
    return Scale(spans, start=seconds(min(times)), end=seconds(max(times)))


def _time_of_day(at: float, *, fine: bool) -> str:
    day = at % 86400
    hours, minutes, seconds = int(day // 3600), int(day % 3600 // 60), day % 60
    return f"{hours:02}:{minutes:02}:{seconds:06.3f}" if fine else f"{hours:02}:{minutes:02}:{int(seconds):02}"
