"""Set, remove, pause, resume, run and backfill schedules. Who did it, and why, is recorded.

With `only_queues`, schedules whose jobs go to other queues are not found. That is judged under the lock of the schedule:
somebody may move it to another queue at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.checks import check_moment, check_name
from faultline.core.errors import JobRejected
from faultline.core.schedules import BACKFILL_MAX, NAME_LENGTH_MAX, Policy
from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store.reads.schedules import rule_of
from faultline.store.verbs import schedules as verbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import Submission
    from faultline.core.schedules import Rule
    from faultline.store.reads.schedules import ScheduleLine
    from faultline.store.statement import Statement


def set_schedule(
    name: str,
    rule: Rule,
    job: Submission,
    policy: Policy | None = None,
    *,
    reason: str | None = None,
    by: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[bool]:
    """Make or change a schedule. Returns whether this changed anything. An invalid rule raises in `Rule(…)`.

    With `only_queues`, its jobs may go to these queues only, before and after.
    Without a policy, the latest missed tick within a day is caught up, overlaps are allowed, and there is no jitter.
    """
    actor.check(by, reason)
    spec = verbs.spec_text(rule, job, policy or Policy())
    statement = verbs.set_schedule(_named(name), spec, by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "schedule_set_by_request", done=bool, schedule=name, rule=rule.text, by=by, reason=reason)


def reset_schedule(
    name: str, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[bool]:
    """Give a schedule that somebody has changed back to what the code says. Returns whether this changed anything."""
    actor.check(by, reason)
    statement = verbs.set_schedule(_named(name), None, by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "schedule_set_by_request", done=bool, schedule=name, by=by, reason=reason)


def remove_schedule(
    name: str, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[bool]:
    """Remove a schedule. Returns whether there was one. One that is in the code of a living worker is refused."""
    actor.check(by, reason)
    statement = verbs.remove_schedule(_named(name), by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "schedule_removed_by_request", done=bool, schedule=name, by=by, reason=reason)


def pause_schedule(
    name: str, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[datetime]:
    """Pause a schedule. Returns since when."""
    actor.check(by, reason)
    statement = verbs.pause_schedule(_named(name), by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "schedule_paused_by_request", schedule=name, by=by, reason=reason)


def resume_schedule(
    name: str,
    next_at: datetime | None = None,
    *,
    reason: str | None = None,
    by: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[bool]:
    """Resume a schedule: ticks from now on count, or from `next_at` on. Returns whether it was paused."""
    actor.check(by, reason)
    statement = verbs.resume_schedule(_named(name), next_at, by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "schedule_resumed_by_request", done=bool, schedule=name, by=by, reason=reason)


def run_schedule(
    name: str, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[UUID]:
    """Enqueue the job of a schedule now, beside its ticks. Returns its id."""
    actor.check(by, reason)
    statement = verbs.run_schedule(_named(name), by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "schedule_run_by_request", schedule=name, by=by, reason=reason)


def backfill(
    schedule: ScheduleLine,
    first: datetime,
    last: datetime,
    *,
    reason: str | None = None,
    by: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[int]:
    """Enqueue jobs for the ticks from `first` to `last`, both included, that have none. Returns how many.

    Read the schedule first: its ticks are computed from its rule. More than 10,000 ticks raise `JobRejected` with the count,
    before anything is computed one by one. Ticks that have yet to come are left out.
    """
    actor.check(by, reason)
    check_backfill(first, last)
    if first > schedule.clock:
        raise JobRejected(
            f"schedule {schedule.name} cannot be backfilled from {first.isoformat()} on: that has yet to come, and its ticks"
            " make their jobs by themselves"
        )
    last = min(last, schedule.clock)
    ticks = rule_of(schedule).between(first, last, anchor=schedule.next_at or schedule.last_at)
    if schedule.next_at is not None and schedule.paused_at is None:
        ticks = [one for one in ticks if one < schedule.next_at]
    statement = verbs.backfill(schedule.name, ticks, by=by, reason=reason, only_queues=only_queues)
    return logged(
        statement,
        "schedule_backfilled_by_request",
        done=bool,
        schedule=schedule.name,
        ticks=len(ticks),
        by=by,
        reason=reason,
    )


def check_backfill(first: datetime, last: datetime) -> None:
    """`JobRejected` unless there can be ticks between these moments."""
    for name, moment in (("first", first), ("last", last)):
        check_moment(f"{name} of a backfill", moment)
    if first > last:
        raise JobRejected(f"a backfill from {first.isoformat()} to {last.isoformat()} goes backwards; swap the two moments")


def _named(name: str) -> str:
    check_name("the name of a schedule", name, NAME_LENGTH_MAX)
    return name


__all__ = [
    "BACKFILL_MAX",
    "backfill",
    "check_backfill",
    "pause_schedule",
    "remove_schedule",
    "reset_schedule",
    "resume_schedule",
    "run_schedule",
    "set_schedule",
]
