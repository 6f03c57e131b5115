"""The rules about unique jobs: of a key one job at most waits for its first run, and whoever is answered with a job that
waits is followed by a run of it.

The key is known from what was submitted. A second submission with the same idempotency key is answered with what the first
was, whatever has become of that: only the first one counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from faultline_proof.faults import Fault, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.accounts import Case, Story
    from faultline_proof.history import Operation


def check(stories: dict[str, Story], case: Case) -> Iterator[Fault]:
    submissions = _submissions(stories)
    for operation in submissions:
        yield from _followed(operation, stories[operation.job_id or ""])
    makers: dict[str, dict[str, Operation]] = defaultdict(dict)
    for operation in submissions:
        makers[operation.detail or ""].setdefault(operation.job_id or "", operation)
    for key, made in makers.items():
        for before, after in pairwise(made.values()):
            if _waited(stories[before.job_id or ""], before, after, case):
                told = f"was made for the unique key {key} while {before.job_id} waited"
                yield Fault(Rule.UNIQUE_ONE, after.job_id or "", told, (before, after))


def _submissions(stories: dict[str, Story]) -> list[Operation]:
    """Those that were answered, in the order of their invocation. One that was sent again is known by its first time."""
    asked = [op for story in stories.values() for op in story.enqueues if op.detail is not None and op.outcome != "failed"]
    found: list[Operation] = []
    known: set[str] = set()
    for operation in sorted(asked, key=attrgetter("invoked_at")):
        if operation.key in known:
            continue
        if operation.key is not None:
            known.add(operation.key)
        if operation.outcome == "ok":
            found.append(operation)
    return found


def _followed(operation: Operation, story: Story) -> Iterator[Fault]:
    """The run in which it succeeded is the last one. If that began before, nobody has seen what came with the submission."""
    done = story.done
    if done is None:
        return
    begun = min((grant.ended_at for grant in story.grants if grant.token == done.token), default=math.inf)
    if begun < operation.invoked_at:
        told = "stands in for a submission that came when its last run had begun"
        yield Fault(Rule.UNIQUE_RUN, story.job_id, told, (operation,))


def _waited(story: Story, made: Operation, other: Operation, case: Case) -> bool:
    """Whether a job surely waited for its first run all the time that the other one's submission took."""
    if made.ended_at >= other.invoked_at or any(entry.event == "expired" for entry in story.journal):
        return False
    if any(op.verb == "cancel" and op.invoked_at < other.ended_at for op in story.others):
        return False
    first = min(story.grants, key=attrgetter("invoked_at"), default=None)
    if first is None:
        return not case.unanswered and bool(story.rows) and story.rows[0].token == 0
    return first.token == 1 and first.verb == "claim" and first.invoked_at > other.ended_at
