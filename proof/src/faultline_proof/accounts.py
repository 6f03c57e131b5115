"""The account of each job in a run: all that its clients saw of it, and all that the database holds of it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.faults import Limits
    from faultline_proof.history import Effect, Final, History, Operation
    from faultline_proof.reads.holdings import JobHeld, StepHeld, Transition


@dataclass(slots=True, eq=False)
class Story:
    """All that is known of one job."""

    job_id: str
    enqueues: list[Operation] = field(default_factory=list)
    #: Claims that were answered with this job.
    grants: list[Operation] = field(default_factory=list)
    #: Writes by a lease that were accepted.
    writes: list[Operation] = field(default_factory=list)
    #: Completions that were asked for, whatever became of them.
    completions: list[Operation] = field(default_factory=list)
    #: What was done to it by others and accepted (reap, cancel, retry), and what was seen of it.
    others: list[Operation] = field(default_factory=list)
    rows: list[JobHeld] = field(default_factory=list)
    journal: list[Transition] = field(default_factory=list)
    steps: list[StepHeld] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    @property
    def done(self) -> JobHeld | None:
        return next((row for row in self.rows if row.state == "succeeded"), None)


@dataclass(slots=True)
class Case:
    """What every rule may ask for."""

    limits: Limits
    at: float
    #: Owners of claims without an answer: they may have been granted anything.
    unanswered: set[str | None] = field(default_factory=set)
    #: Some enqueue without an answer left the id to the database: it may have made any job.
    nameless: bool = False
    #: Jobs that a schedule has made.
    ticked: set[str] = field(default_factory=set)


#: What only the holder of a lease may write for a flow.
FLOW_WRITES = frozenset({"record", "spawn", "receive", "collect_outcomes", "watch", "stream"})
WRITES = FLOW_WRITES | {
    "renew", "record_start", "complete", "fail", "release", "suspend", "continue_as_new", "step", "progress", "fence",
    "take_budget",
}  # fmt: skip
GRANTS = frozenset({"claim", "claimed_by"})
#: After an accepted one of these a lease is good for nothing more.
ENDINGS = frozenset({"complete", "fail", "release", "suspend", "continue_as_new", "reap"})


def told(history: History, final: Final, case: Case) -> dict[str, Story]:
    stories: dict[str, Story] = {}

    def story(job_id: str) -> Story:
        found = stories.get(job_id)
        if found is None:
            found = stories[job_id] = Story(job_id)
        return found

    for operation in history.operations:
        if operation.job_id is not None:
            _tell(operation, story(operation.job_id))
        elif operation.outcome == "unknown":
            case.unanswered |= {operation.owner} if operation.verb == "claim" else set()
            case.nameless |= operation.verb == "enqueue"
    case.ticked = {tick.job_id for tick in final.ticks if tick.job_id is not None}
    for row in final.jobs:
        story(row.job_id).rows.append(row)
    for transition in final.journal:
        story(transition.job_id).journal.append(transition)
    for step in final.steps:
        story(step.job_id).steps.append(step)
    keys = {row.key: row.job_id for row in final.jobs if row.key is not None} if final.effects else {}
    for effect in final.effects:
        story(keys.get(effect.key, effect.key)).effects.append(effect)
    return stories


def _tell(operation: Operation, story: Story) -> None:
    verb = operation.verb
    if verb == "enqueue":
        story.enqueues.append(operation)
    elif verb == "complete":
        story.completions.append(operation)
    if operation.outcome == "ok":
        if verb in WRITES:
            story.writes.append(operation)
        elif verb in GRANTS:
            story.grants.append(operation)
        elif verb != "enqueue":
            story.others.append(operation)


class Grants:
    """Which token was the newest one known to be granted, at any time."""

    def __init__(self, grants: list[Operation]) -> None:
        ordered = sorted(grants, key=attrgetter("ended_at"))
        self._ends = [grant.ended_at for grant in ordered]
        self._newest: list[Operation] = list(accumulate(ordered, _newer))

    @property
    def newest(self) -> Operation | None:
        return self._newest[-1] if self._newest else None

    def newest_before(self, at: float) -> Operation | None:
        place = bisect_left(self._ends, at)
        return self._newest[place - 1] if place else None


def _newer(one: Operation, two: Operation) -> Operation:
    return two if token_of(two) > token_of(one) else one


def token_of(operation: Operation) -> int:
    return operation.token or 0
