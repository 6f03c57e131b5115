"""The life of a job as a picture: one lane for each epoch, refused writes in red.

It uses the same shapes as the timelines of the drills. Horizontal positions are percentages, so it fits any width; its text
keeps its size and is escaped.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from markupsafe import Markup

from faultline.core.journal import EpochEnd
from faultline.explain.formatting import duration, moment, times, words
from faultline.explain.picture import Lane, Picture
from faultline.explain.svg import HATCH, SHAPES, Label, apart, escaped, label_at, line, text
from faultline.explain.time_axis import Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from faultline.core.model import JobRecord
    from faultline.explain.epochs import Epoch

LANES_MAX = 12
_WIDTH_MIN = 290  # of a phone's screen, without its margins
_WIDE = 600  # below this width, the style hides the minor times
#: The mark of an epoch's end, and its label.
_MARKS = {
    EpochEnd.SUCCEEDED: ("ledger", "in the ledger"),
    EpochEnd.FAILED: ("fail", "attempt failed"),
    EpochEnd.CANCELLED: ("end", "cancelled"),
    EpochEnd.RECOVERED: ("reap", "voided by faultline recover"),
}


def _mark_of(end: EpochEnd) -> tuple[str, str] | None:
    """Any other end is drawn like a reaped lease, with its own name."""
    if end in (EpochEnd.RUNNING, EpochEnd.REAPED, EpochEnd.UNRECORDED):
        return None
    return _MARKS.get(end, ("reap", words(end)))


_LEGEND = {
    "claim": "claimed",
    "run": "running, holds the lease",
    "reap": "lease expired, job reaped",
    "beyond": "no longer holds the lease",
    "refused": "write refused",
    "fail": "attempt failed",
    "ledger": "completed: row in the ledger",
    "hatched": "waits, holds no lease",
    "signal": "signal",
}
#: From when to when the job waited, and for what.
Wait = tuple["datetime", "datetime", str]
#: When a signal was sent, and its name.
Sent = tuple["datetime", str]


def letters(epochs: Sequence[Epoch]) -> dict[str, str]:
    """A short name for each worker process of a job, in order: A, B, …, Z, 27, 28."""
    workers = dict.fromkeys(worker_of(epoch.owner) for epoch in epochs if epoch.owner)
    return {worker: chr(ord("A") + number) if number < 26 else str(number + 1) for number, worker in enumerate(workers)}  # noqa: PLR2004 - letters


def worker_of(owner: str | None) -> str:
    """An owner is a worker's id and the number of its claim."""
    return (owner or "").split("/", 1)[0]


def legend(epochs: Sequence[Epoch], waits: Sequence[Wait] = (), signals: Sequence[Sent] = ()) -> list[tuple[Markup, str]]:
    """The shapes in the picture, and what they mean."""
    shown = {"claim", "run"} if epochs else set()
    shown |= ({"hatched"} if waits else set()) | ({"signal"} if signals else set())
    for epoch in epochs:
        shown |= {"reap"} if epoch.end is EpochEnd.REAPED else set()
        shown |= {"refused", "beyond"} if epoch.refusals else set()
        shown |= {mark[0]} if (mark := _mark_of(epoch.end)) else set()
    return [
        # Shapes are our own markup.
        (Markup(SHAPES[shape]), meaning)  # noqa: S704
        for shape, meaning in _LEGEND.items()
        if shape in shown
    ]


def draw(
    job: JobRecord,
    epochs: Sequence[Epoch],
    *,
    now: datetime,
    description: str,
    waits: Sequence[Wait] = (),
    signals: Sequence[Sent] = (),
) -> Markup:
    """The picture. `description`: the same in words, for screen readers. Waits have a lane of their own."""
    drawing = _Drawing(job, epochs[-LANES_MAX:], letters(epochs), now, waits, signals)
    return Markup(  # noqa: S704 - every text in it was escaped when it was put in
        f'<svg class="lanes" role="img" height="{drawing.height:g}" aria-labelledby="lanes-title lanes-description">'
        f'<title id="lanes-title">The epochs of this job</title><desc id="lanes-description">{escaped(description)}</desc>'
        f"{HATCH if waits else ''}{drawing.markup()}</svg>"
    )


def held(epoch: Epoch, now: datetime) -> tuple[datetime, datetime] | None:
    """From when to when the job was held; None: not known."""
    if epoch.claimed_at is None:
        return None
    return epoch.claimed_at, epoch.ended_at or now


class _Drawing:
    def __init__(
        self,
        job: JobRecord,
        epochs: Sequence[Epoch],
        names: Mapping[str, str],
        now: datetime,
        waits: Sequence[Wait],
        signals: Sequence[Sent],
    ) -> None:
        self._names = names
        self._now = now
        self._midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        outside = [at for start, end, _ in waits for at in (start, end)] + [at for at, _ in signals]
        self._scale = _scale(job, epochs, now, self._seconds, outside)
        self._picture = Picture(_WIDTH_MIN)
        lanes = [self._lane(epoch) for epoch in epochs]
        if epochs and epochs[0].claimed_at is not None:
            lanes[0].waited_from = self._x(job.created_at)
            lanes[0].mark("queued", lanes[0].waited_from, f"enqueued, {moment(job.created_at)}")
        if waits or signals:
            lanes.append(self._waits(waits, signals))
        bottom = self._picture.draw(lanes, 4.0) + 6
        if any(epoch.end is EpochEnd.RUNNING for epoch in epochs):
            self._picture.below.append(line(self._x(now), 0, self._x(now), bottom, "now"))
        self._draw_axis(bottom)
        self.height = bottom + 28
        self.markup = self._picture.markup

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
        self._picture.above += [text(label, bottom + 20) for label in more]
        self._picture.below[:0] = [*grid, line(0, bottom, 100, bottom, "edge")]

    def _axis_label(self, x: float, name: str, kind: str) -> Label:
        return label_at(x, name, kind, width_min=_WIDTH_MIN)

    def _waits(self, waits: Sequence[Wait], signals: Sequence[Sent]) -> Lane:
        made = Lane('<tspan class="token">waits</tspan><tspan> \N{MIDDLE DOT} without a lease</tspan>', _WIDTH_MIN)
        made.bars += [(self._x(start), self._x(end), 12, "hatched") for start, end, _ in waits]
        for at, name in signals:
            made.mark("signal", self._x(at), f"signal {name}, {moment(at)}", name)
        return made

    def _lane(self, epoch: Epoch) -> Lane:
        name = escaped(self._names.get(worker_of(epoch.owner)) or "unknown")
        renewed = f" \N{MIDDLE DOT} renewed {times(epoch.renewals)}" if epoch.renewals else ""
        lane = Lane(
            f'<tspan class="token">token {epoch.token}</tspan><tspan> \N{MIDDLE DOT} worker {name}{renewed}</tspan>',
            _WIDTH_MIN,
        )
        if epoch.claimed_at is not None:
            lane.taken = self._x(epoch.claimed_at), f"taken over, {moment(epoch.claimed_at)}"
        if epoch.ended_at is not None:
            lane.given = self._x(epoch.ended_at)
        lane.bars += [(self._x(start), self._x(end), thick, kind) for start, end, thick, kind in self._bars(epoch)]
        self._mark(lane, epoch)
        return lane

    def _bars(self, epoch: Epoch) -> Iterator[tuple[datetime, datetime, int, str]]:
        """Solid while the lease was good, pale from then until the worker's last refused write."""
        span = held(epoch, self._now)
        last = max((write.at for write in epoch.refusals), default=None)
        if span is None:
            if last is not None:
                yield min(write.at for write in epoch.refusals), last, 12, "beyond"
            return
        claimed, over = span
        expires = epoch.lease_expires_at
        if expires is not None and epoch.end in (EpochEnd.RUNNING, EpochEnd.REAPED):
            if expires > over:
                yield over, expires, 4, "lease"
            good = min(over, max(expires, claimed))
        else:
            good = over
        end = max(filter(None, (over, last)))
        if end > good:
            yield good, end, 12, "beyond"
        yield claimed, good, 12, "run"

    def _mark(self, lane: Lane, epoch: Epoch) -> None:
        def mark(shape: str, at: datetime, what: str, label: str = "", *, beside: int = 0) -> None:
            lane.mark(shape, self._x(at), f"{what}, {moment(at)}", label, beside=beside)

        if epoch.claimed_at is not None:
            mark("claim", epoch.claimed_at, "claimed")
        if epoch.end is EpochEnd.REAPED and epoch.ended_at is not None:
            reason = words(epoch.reason)
            mark("reap", epoch.ended_at, f"reaped: {reason}", reason or "reaped", beside=-6)
        elif (marked := _mark_of(epoch.end)) and epoch.ended_at is not None:
            shape, word = marked
            mark(shape, epoch.ended_at, word, word)
        for write in epoch.refusals:
            mark("refused", write.at, f"{write.verb} refused: {words(write.reason)}", f"{write.verb} refused")


def _scale(
    job: JobRecord,
    epochs: Sequence[Epoch],
    now: datetime,
    seconds: Callable[[datetime], float],
    outside: Sequence[datetime],
) -> Scale:
    """`outside`: further times to show, in which the job was not held."""
    spans: list[tuple[float, float]] = []
    times = [job.created_at] if epochs and epochs[0].token == 1 else []
    times += outside
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
