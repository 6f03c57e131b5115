"""Limits in words, for terminals and pages: what one says, and what a job waits for."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from faultline.core.limits import EACH_GROUP, WHOLE_QUEUE
from faultline.explain.formatting import span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.core.model import JobSummary, Json
    from faultline.store.reads.groups import Permit

_PERIODS = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "d"}


def said(fields: Mapping[str, Json]) -> str:
    """A limit as a line: `5 at once, 100/min (burst 10), weight 2`. What is None is not limited."""
    parts = []
    if fields.get("ordered"):
        # Whatever its number at once: see group_limit (SQL).
        parts.append("one at a time, in order")
    elif "concurrency" in fields:
        parts.append("any number at once" if fields["concurrency"] is None else f"{_number(fields['concurrency'])} at once")
    if "rate" in fields:
        parts.append("any rate" if fields["rate"] is None else rate(fields))
    if fields.get("weight") is not None:
        parts.append(f"weight {_number(fields['weight'])}")
    if fields.get("ordered") is False:
        parts.append("in any order")
    return ", ".join(parts)


def in_force(fields: Mapping[str, Json]) -> str:
    """The same without what is not limited."""
    return said({name: value for name, value in fields.items() if value is not None})


def rate(fields: Mapping[str, Json]) -> str:
    per = fields.get("per") or 1.0
    seconds = float(per) if isinstance(per, int | float) else 1.0
    period = _PERIODS.get(seconds) or span(seconds)
    burst = fields.get("burst")
    return f"{_number(fields['rate'])}/{period}" + (f" (burst {_number(burst)})" if burst is not None else "")


def whose(group: str) -> str:
    """What a limit is of."""
    return {WHOLE_QUEUE: "the queue", EACH_GROUP: "each group"}.get(group, group)


def reasons(permit: Permit, group: str | None) -> list[str]:
    """What a job without a permit waits for: each limit that is in its way now. Empty: its turn."""
    found = []
    cap = _cap(permit.queue_limit)
    if cap is not None and permit.queue_holding >= cap:
        found.append(f"a permit of the queue ({permit.queue_holding:,} of {cap:,} are held)")
    if permit.queue_tokens is not None and permit.queue_tokens < 1:
        found.append(f"the rate of the queue: {rate(permit.queue_limit)}")
    if group is not None and not permit.of_group:
        cap = _cap(permit.group_limit)
        if cap is not None and permit.group_holding >= cap:
            held = f"{permit.group_holding:,} of {cap:,} are held"
            found.append(f"a permit of its group ({f'job {permit.group_holder} holds it' if cap == 1 else held})")
        if permit.group_tokens is not None and permit.group_tokens < 1:
            found.append(f"the rate of its group: {rate(permit.group_limit)}")
    return found


def standing(job: JobSummary, permit: Permit | None, now: datetime) -> str:
    """Whether a job holds a permit or waits for one, and what for. Empty: limits do not concern it."""
    if permit is None or job.state.ended:
        return ""
    budget = _budget_wait(job, permit, now)
    if budget or not permit.limited:
        return budget
    if job.state == "running":
        both = permit.of_queue and permit.of_group
        held = "its queue and its group" if both else "its queue" if permit.of_queue else "its group"
        return f"holds a permit of {held}" if permit.of_queue or permit.of_group else "holds no permit"
    kept = "keeps the permit of its group; " if permit.of_group else ""
    if job.next_run_at is not None and job.next_run_at > now:
        return kept.removesuffix("; ")
    waits = " and ".join(reasons(permit, job.group))
    until = ""
    if permit.next_permit_at is not None and permit.next_permit_at > now:
        until = f"; the next permit comes in {span((permit.next_permit_at - now).total_seconds())}"
    return f"{kept}waits for {waits or 'its turn'}{until}"


def _budget_wait(job: JobSummary, permit: Permit, now: datetime) -> str:
    """The budget that a queued job waits for. Empty: none. One whose moment has come waits for a worker."""
    if job.state != "queued" or job.next_run_at is None or job.next_run_at <= now:
        return ""
    found = []
    for name, wait in permit.waits.items():
        until = wait.get("to") if isinstance(wait, dict) else None
        if isinstance(wait, dict) and isinstance(until, str) and datetime.fromisoformat(until) > now:
            cost = wait.get("cost")
            what = f"{_number(cost)} of budget {name}" if cost is not None else f"budget {name}"
            found.append(f"{what} (in about {span((datetime.fromisoformat(until) - now).total_seconds())})")
    return f"waits for {' and '.join(found)}" if found else ""


def _cap(fields: Mapping[str, Json]) -> int | None:
    if fields.get("ordered"):
        return 1
    found = fields.get("concurrency")
    return int(found) if isinstance(found, int | float) else None


def _number(value: Json) -> str:
    if not isinstance(value, int | float):
        return str(value)
    return f"{int(value):,}" if value == int(value) else f"{value:,g}"
