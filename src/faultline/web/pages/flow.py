"""The part of a job's page that is about its flow: the tree, its calls over time, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.states import JobState
from faultline.explain import child_strip, tree
from faultline.store.reads.flows import SHOWN_CHILDREN_MAX

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.core.model import JobRecord
    from faultline.explain.attempt_timeline import Sent, Wait
    from faultline.store.reads.flows import Call, Flow

#: Further rows are only counted.
_ROWS_MAX = 300


def awaited(job: JobRecord, flow: Flow | None) -> list[Call]:
    """The calls that the job waits for now."""
    if flow is None or not job.suspended:
        return []
    return [call for call in flow.calls if call.job_id == job.id and call.awaited and call.ended_at is None]


def waits_of(job: JobRecord, flow: Flow | None, now: datetime) -> list[Wait]:
    """When the job waited, for its picture."""
    if flow is None:
        return []
    return tree.waited([call for call in flow.calls if call.job_id == job.id], job.finished_at or now)


def signals_of(job: JobRecord, flow: Flow | None) -> list[Sent]:
    if flow is None:
        return []
    return [(signal.sent_at, signal.name) for signal in flow.signals if signal.job_id == job.id]


def can_undo(job: JobRecord, flow: Flow | None) -> bool:
    """Whether it has ended with a saga that it has not left."""
    if flow is None or job.state not in (JobState.FAILED, JobState.CANCELLED):
        return False
    return any(call.job_id == job.id and call.kind == "saga" and call.outcome != "done" for call in flow.calls)


def facts(job: JobRecord, flow: Flow | None, now: datetime, *, may_operate: bool) -> dict[str, Any]:
    """What the template shows of the flow."""
    rows = [] if flow is None else tree.rows(flow, now)
    timeline = tree.Timeline(rows[:_ROWS_MAX], now)
    waits = awaited(job, flow)
    return {
        "flow": flow,
        "rows": rows[:_ROWS_MAX],
        "rows_left": len(rows) - len(rows[:_ROWS_MAX]),
        "draw": timeline.draw,
        "patterns": timeline.patterns(),
        "kinds": tree.KINDS,
        "took": tree.took,
        "strip": child_strip.draw,
        "counts": child_strip.counts,
        "strip_from": SHOWN_CHILDREN_MAX,
        "waits": waits,
        "waits_for": tree.waits_for,
        "limit": tree.limit,
        "may_fork": may_operate,
        "can_undo": may_operate and can_undo(job, flow),
        "asked": [call for call in waits if call.kind == "signal"] if may_operate else [],
        "signals": [] if flow is None else [signal for signal in flow.signals if signal.job_id == job.id],
    }
