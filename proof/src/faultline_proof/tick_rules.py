"""The rule about schedules: every moment of a schedule is decided once, and one that fired has made one job."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from faultline_proof.faults import Fault, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.accounts import Case
    from faultline_proof.history import Final
    from faultline_proof.reads.holdings import TickHeld

#: Moments are numbers here, and the database's have microseconds.
_SAME_SECONDS = 1e-3
#: With `latest`, what is decided no later than this makes its job, even if others follow.
_ON_TIME_SECONDS = 3.0


def check(final: Final, case: Case) -> Iterator[Fault]:
    if not final.ticks and not case.limits.ticked:
        return
    yield from _one_job_each(final, case)
    schedules: dict[str, list[TickHeld]] = defaultdict(list)
    for tick in sorted(final.ticks, key=lambda tick: tick.at):
        if not tick.by_hand:
            schedules[tick.schedule].append(tick)
    for name, ticks in schedules.items():
        yield from _one_after_the_other(name, ticks, case)
        yield from _left_out_rightly(name, ticks, case)
    yield from _none_left(schedules, case)


def _one_job_each(final: Final, case: Case) -> Iterator[Fault]:
    there = {row.job_id: row for row in final.jobs}
    ticks: dict[str, TickHeld] = {}
    for tick in final.ticks:
        if tick.job_id is None:
            continue
        if tick.job_id in ticks:
            yield Fault(Rule.TICK_ONCE, tick.job_id, f"was made by two ticks of {tick.schedule}")
        elif tick.job_id not in there and not case.limits.pruned:
            yield Fault(Rule.TICK_ONCE, tick.job_id, f"is lost: a tick of {tick.schedule} has made it")
        ticks[tick.job_id] = tick
    for row in final.jobs:
        if row.task in case.limits.ticked and row.job_id not in ticks:
            yield Fault(Rule.TICK_ONCE, row.job_id, f"of task {row.task} was made by no tick, and only a schedule makes it")


def _one_after_the_other(name: str, ticks: list[TickHeld], case: Case) -> Iterator[Fault]:
    """`every`: what lies between two moments of this schedule. None: nobody knows, and a gap may be none."""
    every = case.limits.every.get(name)
    for before, after in pairwise(ticks):
        last = before.at if before.until is None else before.until
        if after.at <= last + _SAME_SECONDS:
            told = f"is of {name}, whose moment {after.at:.3f} was decided twice"
            yield Fault(Rule.TICK_ONCE, after.job_id or before.job_id or "", told)
        elif every is not None and after.at > last + every + _SAME_SECONDS:
            told = f"is of {name}, which has decided nothing between {last:.3f} and {after.at:.3f}"
            yield Fault(Rule.TICK_ONCE, after.job_id or before.job_id or "", told)


def _left_out_rightly(name: str, ticks: list[TickHeld], case: Case) -> Iterator[Fault]:
    """A moment makes no job only if it was decided too late for one, and then the latest of those makes one."""
    policy = case.limits.catch_up.get(name)
    if policy is None:
        return
    for tick, after in pairwise([*ticks, None]):
        if tick is None or tick.until is None:
            continue
        late = tick.decided_at - tick.until
        if policy == "all" or late < _ON_TIME_SECONDS:
            told = f"is missing: {name} has left out its moment {tick.until:.3f}, which was {late:.3f} s late"
            yield Fault(Rule.TICK_ONCE, "", told)
        elif after is None or after.until is not None:
            told = f"is missing: {name} has left out all up to its moment {tick.until:.3f}, and run none of them"
            yield Fault(Rule.TICK_ONCE, "", told)


def _none_left(schedules: dict[str, list[TickHeld]], case: Case) -> Iterator[Fault]:
    """Whoever has stopped deciding leaves no gap behind."""
    until = case.limits.ticked_until
    for name, every in case.limits.every.items() if until is not None else ():
        last = max((tick.at if tick.until is None else tick.until for tick in schedules[name]), default=None)
        if last is None or last + every + _SAME_SECONDS < (until or 0.0):
            told = "never" if last is None else f"not since {last:.3f}"
            yield Fault(Rule.TICK_ONCE, "", f"is missing: {name} has decided nothing, {told}")
