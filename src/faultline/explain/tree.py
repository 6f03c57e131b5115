"""A flow as a tree: each job with its calls, each call with its children, waits and the signals that it received.

`rows` is the tree from top to bottom, for pages and terminals. `Timeline` draws each row over time: waits are hatched,
signals are marks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from faultline.explain.formatting import duration, moment
from faultline.explain.svg import HATCH, bar, hatched, mark
from faultline.explain.time_axis import Scale

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.store.reads.flows import Call, Children, Flow, FlowJob, Signal

#: In these a job waits; all others do something.
WAITS = frozenset(("sleep", "signal", "children", "watch", "after", "retry"))
_FOREVER_YEAR = 9999
_MIDDLE = 9
_HEIGHT = 18

#: What kinds of calls are called on screens.
KINDS = {
    "step": "step",
    "atomic": "atomic step",
    "sleep": "sleep",
    "signal": "signal",
    "children": "children",
    "detached": "detached jobs",
    "watch": "watched jobs",
    "after": "comes after",
    "race": "race",
    "patch": "patch",
    "saga": "saga",
    "retry": "pause before a try",
}


@dataclass(slots=True)
class Row:
    """A job or a call of the tree."""

    depth: int
    job: FlowJob
    #: None: the row is the job itself.
    call: Call | None = None
    children: Children | None = None
    #: What the call received; of a job: what nothing has received yet.
    signals: list[Signal] = field(default_factory=list)
    below: list[Row] = field(default_factory=list)
    #: When it was over. A sleep is, when its time is: nothing is written then.
    over_at: datetime | None = None

    @property
    def state(self) -> str:
        """One word: the state of the job, or how the call ended."""
        if self.call is None:
            return self.job.shown_state
        if self.call.outcome is not None:
            return self.call.outcome
        ended = self.job.finished_at
        if ended is not None and (self.over_at is None or self.over_at > ended):
            return "not finished"
        if self.over_at is not None:
            return "done"
        return "waiting" if self.call.awaited and self.job.suspended else "begun"


def over_at(call: Call, now: datetime) -> datetime | None:
    """When a call was over; None: it is not."""
    if call.ended_at is None and call.kind in ("sleep", "retry") and call.until is not None and call.until <= now:
        return max(call.until, call.begun_at)
    return call.ended_at


def grown(flow: Flow, now: datetime) -> Row | None:
    """The root of the tree, with all below it. None: the job is not among those shown."""
    calls: dict[UUID, list[Call]] = defaultdict(list)
    for call in flow.calls:
        calls[call.job_id].append(call)
    jobs: dict[int, list[FlowJob]] = defaultdict(list)
    for job in flow.jobs:
        if job.call_id is not None:
            jobs[job.call_id].append(job)
    groups = {group.call_id: group for group in flow.children}
    signals: dict[tuple[UUID, str | None], list[Signal]] = defaultdict(list)
    for signal in flow.signals:
        signals[signal.job_id, signal.received_by].append(signal)

    def grow(job: FlowJob, depth: int) -> Row:
        row = Row(depth, job, signals=signals[job.id, None])
        known: dict[str, Row] = {}
        for call in calls[job.id]:
            above = _branch_of(call.number, known) or row
            made = Row(above.depth + 1, job, call, groups.get(call.id), signals[job.id, call.number])
            made.over_at = over_at(call, now)
            known[call.number] = made
            above.below.append(made)
            made.below += [grow(child, made.depth + 1) for child in jobs[call.id]]
        return row

    return next((grow(job, 0) for job in flow.jobs if job.call_id is None), None)


def _branch_of(number: str, known: dict[str, Row]) -> Row | None:
    """The call that a call of a branch stands below: `3.1.2` below `3.1`, or else below `3`."""
    while "." in number:
        number = number.rpartition(".")[0]
        if number in known:
            return known[number]
    return None


def rows(flow: Flow, now: datetime) -> list[Row]:
    """The tree from top to bottom."""

    def walk(row: Row) -> Iterator[Row]:
        yield row
        for one in row.below:
            yield from walk(one)

    root = grown(flow, now)
    return [] if root is None else list(walk(root))


def limit(at: datetime | None) -> datetime | None:
    """When a wait is over at the latest; None: it has no limit."""
    return None if at is None or at.year >= _FOREVER_YEAR else at


def waits_for(kind: str, name: str) -> str:
    """In words, after `waits`: for what."""
    match kind:
        case "signal":
            return f"for the signal {name}"
        case "sleep":
            return "until its sleep is over"
        case "children":
            return f"for its children of {name}"
        case "after":
            return "for the jobs that it comes after"
        case "watch":
            return f"for other jobs ({name})"
        case "retry":
            return f"before it tries {name} again"
        case _:
            return f"for {KINDS.get(kind, kind)} {name}"


def took(row: Row, now: datetime) -> str:
    """How long it took, or has taken so far."""
    start, end = _span(row, now)
    return "" if start is None or end is None else duration(end - start)


def _span(row: Row, now: datetime) -> tuple[datetime | None, datetime | None]:
    if row.call is None:
        return row.job.created_at, row.job.finished_at or now
    over = row.over_at or (now if row.job.finished_at is None else row.job.finished_at)
    return row.call.begun_at, max(over, row.call.begun_at)


def waited(calls: Sequence[Call], now: datetime) -> list[tuple[datetime, datetime, str]]:
    """From when to when the program of a job waited, and for what, in the order of time."""
    found = [
        (call.begun_at, max(over_at(call, now) or now, call.begun_at), f"waited {waits_for(call.kind, call.name)}")
        for call in calls
        if call.kind in WAITS and (call.awaited or call.ended_at is not None)
    ]
    return sorted(found)


class Timeline:
    """The rows of a tree over one axis of time. A long time in which nothing happened is drawn short."""

    def __init__(self, shown: Sequence[Row], now: datetime) -> None:
        self._now = now
        spans = [(row, start, end) for row in shown for start, end in [_span(row, now)] if start and end]
        self._start = min((start for _, start, _ in spans), default=now)
        last = max((end for _, _, end in spans), default=now)
        busy = [
            (self._seconds(start), self._seconds(end))
            for row, start, end in spans
            if row.call is not None and row.call.kind not in WAITS
        ]
        busy += [
            (self._seconds(row.job.claimed_at), self._seconds(row.job.finished_at or now))
            for row, _, _ in spans
            if row.call is None and row.job.claimed_at is not None and not row.job.suspended and not _has_calls(row)
        ]
        self._scale = Scale(busy, start=0.0, end=self._seconds(last))

    def _seconds(self, at: datetime) -> float:
        return (at - self._start).total_seconds()

    def _x(self, at: datetime) -> float:
        return self._scale.x(self._seconds(at))

    def draw(self, row: Row) -> Markup:
        start, end = _span(row, self._now)
        if start is None or end is None:
            return Markup()
        x, to = self._x(start), self._x(end)
        what = f"{moment(start)} for {duration(end - start)}"
        if row.call is None:
            drawn = bar(x, to, _MIDDLE, 4, f"time-job time-{row.state}")
        elif row.call.kind in WAITS:
            drawn = hatched(x, to, _MIDDLE, 10)
        else:
            drawn = bar(x, to, _MIDDLE, 10, f"time-call time-{row.state}")
        for one in row.signals:
            drawn += mark("signal", self._x(one.sent_at), _MIDDLE, f"signal {one.name}, {moment(one.sent_at)}")
        return Markup(  # noqa: S704 - figures, and texts that were escaped
            f'<svg class="time" height="{_HEIGHT}" role="img" aria-label="{what}"><title>{what}</title>{drawn}</svg>'
        )

    @staticmethod
    def patterns() -> Markup:
        """What the rows are filled with, once a page."""
        return Markup(f'<svg class="patterns" width="0" height="0" aria-hidden="true">{HATCH}</svg>')  # noqa: S704 - ours


def _has_calls(row: Row) -> bool:
    return any(one.call is not None for one in row.below)
