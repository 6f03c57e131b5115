"""The rules about limits: what runs at once, in which order, how often, and that no permit outlives its job.

What may run is known from what was declared and set, as clients asked for it; what does run from what they were granted and
what they wrote. A job surely runs from the answer to its claim until somebody asks for what may end its lease. No code of
the engine is asked.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

from faultline_proof.accounts import ENDINGS, WRITES
from faultline_proof.faults import Fault, Rule
from faultline_proof.limit_changes import THE_QUEUE, Changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from faultline_proof.accounts import Case, Story
    from faultline_proof.history import Final, History
    from faultline_proof.reads.holdings import JobHeld

#: What a row's permits count for.
#: Windows of a rate are looked at up to so many grants beyond the burst.
_GRANTS_LOOKED_AT = 200


@dataclass(frozen=True, slots=True)
class _Held:
    """One lease: it was granted between two moments, and surely held until a third."""

    job_id: str
    asked_at: float
    since: float
    until: float
    #: Its first lease, so that it cannot have kept a permit from the one before.
    first: bool


def check(history: History, final: Final, stories: dict[str, Story], case: Case) -> Iterator[Fault]:
    changes = Changes(history)
    if not changes.queues and not final.permits:
        return
    jobs = {row.job_id: row for row in final.jobs if row.queue in changes.queues}
    leases = _leases(stories[job_id] for job_id in jobs)
    yield from limit_kept(_by_limit(leases, jobs), changes)
    yield from rate_kept(_by_limit(leases, jobs), changes, case)
    yield from group_order(jobs, stories, changes)
    yield from permit_freed(final, changes)


def _leases(stories: Iterable[Story]) -> list[_Held]:
    return [held for story in stories for held in _leases_of(story)]


def _leases_of(story: Story) -> Iterator[_Held]:
    tokens: dict[int, list[float]] = {}
    for grant in story.grants:
        # Whoever asks what was granted to him does not say since when.
        asked_at = grant.invoked_at if grant.verb == "claim" else -math.inf
        times = tokens.setdefault(grant.token or 0, [asked_at, grant.ended_at])
        times[:] = max(times[0], asked_at), min(times[1], grant.ended_at)
    for token, (asked_at, since) in tokens.items():
        yield _Held(story.job_id, asked_at, since, _surely_until(story, token), token == min(tokens))


def _surely_until(story: Story, token: int) -> float:
    """When somebody first asked for what may have ended this lease. Without a sign of life, it may have ended at once."""
    mine = [op for op in (*story.writes, *story.others, *story.completions) if op.token == token]
    endings = [op for op in mine if op.verb in ENDINGS and op.outcome != "failed"]
    cancels = [op.invoked_at for op in story.others if op.verb == "cancel"]
    until = min((op.invoked_at for op in endings), default=math.inf)
    if any(op.outcome == "ok" for op in endings):
        return until
    if any(row.state == "running" and row.token == token for row in story.rows):
        return until
    alive = max((op.invoked_at for op in mine if op.verb in WRITES and op.outcome == "ok"), default=-math.inf)
    return min(until, alive, *cancels, math.inf)


def _by_limit(leases: Iterable[_Held], jobs: dict[str, JobHeld]) -> dict[tuple[str, str], list[_Held]]:
    """Each lease counts for its queue, and for its group if it has one."""
    found: dict[tuple[str, str], list[_Held]] = defaultdict(list)
    for held in leases:
        row = jobs[held.job_id]
        found[row.queue, THE_QUEUE].append(held)
        if row.group is not None:
            found[row.queue, row.group].append(held)
    return found


def limit_kept(leases: dict[tuple[str, str], list[_Held]], changes: Changes) -> Iterator[Fault]:
    """What surely runs at one moment was running when the last of it was granted."""
    for (queue, key), held in leases.items():
        least = changes.least(queue, key, "concurrency")
        running: list[tuple[float, float]] = []
        for one in sorted(held, key=attrgetter("since")):
            if one.until <= one.since:
                continue
            while running and running[0][0] <= one.since:
                heapq.heappop(running)
            heapq.heappush(running, (one.until, one.asked_at))
            if len(running) <= least:
                continue
            last_asked_at = max(asked_at for _, asked_at in running)
            most = changes.most(queue, key, "concurrency", last_asked_at, one.since)
            if len(running) > most:
                told = f"was granted beside {len(running) - 1} others of {_named(queue, key)}, where {most:g} may run"
                yield Fault(Rule.LIMIT_KEPT, one.job_id, told)
                break


def rate_kept(leases: dict[tuple[str, str], list[_Held]], changes: Changes, case: Case) -> Iterator[Fault]:
    seconds = case.limits.seconds_of
    for (queue, key), held in leases.items():
        if changes.least(queue, key, "rate") == math.inf:
            continue
        grants = sorted((one for one in held if one.asked_at > -math.inf), key=attrgetter("since"))
        times = [(seconds(one.asked_at), seconds(one.since)) for one in grants]
        for last, one in enumerate(grants):
            most = _allowed(changes, queue, key, grants[max(0, last - _GRANTS_LOOKED_AT)].asked_at, one.since)
            if most is not None and (wrong := _too_many(times, last, *most)):
                told = f"is number {wrong[0]} of {_named(queue, key)} that was granted within {wrong[1]:.3f} s"
                yield Fault(Rule.RATE_KEPT, one.job_id, told)
                break


def _allowed(changes: Changes, queue: str, key: str, since: float, until: float) -> tuple[float, float] | None:
    """The greatest rate a second, and the greatest burst. Whoever changes a limit may fill the bucket."""
    rate = changes.most(queue, key, "rate", since, until)
    if rate == math.inf:
        return None
    per = changes.fewest(queue, key, "per", since, until, 1.0)
    burst = changes.most(queue, key, "burst", since, until)
    if burst == math.inf:
        burst = max(1.0, math.ceil(rate))
    return rate / per, burst * (1 + changes.number_of(queue, since, until))


def _too_many(times: list[tuple[float, float]], last: int, rate: float, burst: float) -> tuple[int, float] | None:
    """Whether more were granted in some window that ends with this one than the bucket holds and takes in meanwhile."""
    first_asked_at = math.inf
    for number, (asked_at, _) in enumerate(reversed(times[max(0, last - _GRANTS_LOOKED_AT) : last + 1]), start=1):
        first_asked_at = min(first_asked_at, asked_at)
        window = times[last][1] - first_asked_at
        if number > burst + rate * window + 1e-6:
            return number, window
    return None


def group_order(jobs: dict[str, JobHeld], stories: dict[str, Story], changes: Changes) -> Iterator[Fault]:
    """Whoever was enqueued after another one's enqueue was answered starts when that one has ended for good."""
    groups: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for job_id, row in jobs.items():
        if row.group is not None and changes.always_ordered(row.queue, row.group):
            groups[row.queue, row.group].append(stories[job_id])
    for (queue, key), members in groups.items():
        placed = sorted((at, ended_at(story), story.job_id) for story in members if (at := _placed_at(story)) is not None)
        answered = [at for at, _, _ in placed]
        latest = list(accumulate(((end, job_id) for _, end, job_id in placed), max))
        for story in members:
            asked = [op.invoked_at for op in story.enqueues if op.outcome != "failed"]
            # What was granted before there was an order has none.
            started = [op.ended_at for op in story.grants if op.invoked_at >= changes.declared_at(queue)]
            started = started if len(started) == len(story.grants) else []
            place = bisect_left(answered, min(asked, default=-math.inf)) if started and not came_again(story) else 0
            if place and latest[place - 1][0] > min(started):
                told = f"was started in {_named(queue, key)} before {latest[place - 1][1]}, which comes first, had ended"
                yield Fault(Rule.GROUP_ORDER, story.job_id, told)
                break


def came_again(story: Story) -> bool:
    """A person has brought it back: its place is a new one."""
    return any(op.verb == "retry" for op in story.others)


def _placed_at(story: Story) -> float | None:
    """When its enqueue was first answered; None if its place in the group is not known."""
    answered = [op.ended_at for op in story.enqueues if op.outcome == "ok"]
    return None if not answered or came_again(story) else min(answered)


def ended_at(story: Story) -> float:
    """The earliest moment at which it may have ended for good."""
    if not story.rows or story.rows[0].state in ("queued", "running"):
        return math.inf if story.rows else -math.inf
    row = story.rows[0]
    if row.state == "succeeded":
        return min((op.invoked_at for op in story.completions if op.outcome != "failed"), default=-math.inf)
    verbs = ("cancel", "fail", "reap")
    ends = [op.invoked_at for op in (*story.writes, *story.others) if op.verb in verbs and op.token in (None, row.token)]
    return min(ends, default=-math.inf)


def permit_freed(final: Final, changes: Changes) -> Iterator[Fault]:
    """A permit is held by a running job, or by one of a strict group on its way to its end; and by nobody else."""
    counted: Counter[tuple[str, str]] = Counter()
    for row in final.jobs:
        if not row.has_permit:
            continue
        counted[row.queue, THE_QUEUE] += row.state == "running"
        if row.group is not None:
            counted[row.queue, row.group] += 1
        kept = row.state == "queued" and row.group is not None and changes.ever_ordered(row.queue, row.group)
        if row.state != "running" and not kept:
            yield Fault(Rule.PERMIT_FREED, row.job_id, f"is {row.state} and holds a permit of the queue {row.queue}")
    held = {(permit.queue, permit.group): permit.holding for permit in final.permits}
    for place in sorted(counted.keys() | held.keys()):
        if counted[place] != held.get(place, 0):
            told = (
                f"is missing: {held.get(place, 0)} permits of {_named(*place)} are given out, {counted[place]} jobs hold one"
            )
            yield Fault(Rule.PERMIT_FREED, "", told)


def _named(queue: str, key: str) -> str:
    return f"the queue {queue}" if key == THE_QUEUE else f"the group {key} of the queue {queue}"
