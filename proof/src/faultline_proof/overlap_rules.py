"""The rule about overlaps: of a schedule that allows none, one job runs at a time, and with `one` another waits.

Which job started when is known from the calls of workers; how many were open when a moment was decided, from the database's
own times.
"""

from __future__ import annotations

import math
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from faultline_proof.faults import Fault, Rule
from faultline_proof.limit_rules import came_again, ended_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.accounts import Case, Story
    from faultline_proof.history import Final
    from faultline_proof.reads.holdings import JobHeld, TickHeld

#: So many of its jobs may be open.
_OPEN_MAX = {"skip": 1, "one": 2}
#: A moment is decided a little after the time that is on record of it, and a job's end is seen a little after its own.
_ABOUT_SECONDS = 3.0


def check(final: Final, stories: dict[str, Story], case: Case) -> Iterator[Fault]:
    for name, overlap in case.limits.overlap.items():
        ticks = sorted((tick for tick in final.ticks if tick.schedule == name and tick.until is None), key=attrgetter("at"))
        yield from _one_at_a_time(
            name, [stories[tick.job_id] for tick in ticks if tick.job_id in stories and not tick.by_hand]
        )
        if not case.limits.pruned:
            yield from _skipped_rightly(name, ticks, {row.job_id: row for row in final.jobs}, _OPEN_MAX[overlap])


def _one_at_a_time(name: str, jobs: list[Story]) -> Iterator[Fault]:
    """A person who retries a job goes past this."""
    jobs = [story for story in jobs if not came_again(story)]
    latest = list(accumulate(((ended_at(story), story.job_id) for story in jobs), max))
    for (ended, before), story in zip(latest, jobs[1:], strict=False):
        if min((grant.ended_at for grant in story.grants), default=math.inf) < ended:
            told = f"of {name} was started before {before}, the job of an earlier moment, had ended"
            yield Fault(Rule.TICK_ALONE, story.job_id, told)


def _skipped_rightly(name: str, ticks: list[TickHeld], jobs: dict[str, JobHeld], most: int) -> Iterator[Fault]:
    """A moment is skipped if, and only if, as many of the schedule's jobs as may be are open."""
    made: list[JobHeld] = []
    for tick in ticks:
        job = jobs.get(tick.job_id or "")
        if tick.outcome == "skipped" and _open_at(tick.decided_at - _ABOUT_SECONDS, made) < most:
            yield Fault(Rule.TICK_ALONE, "", f"is missing: {name} has skipped its moment {tick.at:.3f}, and had room for it")
        elif tick.outcome == "fired" and _open_at(tick.decided_at + _ABOUT_SECONDS, made) >= most:
            told = f"of {name} was made for the moment {tick.at:.3f}, when {most} of its jobs were open"
            yield Fault(Rule.TICK_ALONE, tick.job_id or "", told)
        made += [job] if job is not None else []


def _open_at(at: float, jobs: list[JobHeld]) -> int:
    return sum(job.finished_at is None or job.finished_at > at for job in jobs)
