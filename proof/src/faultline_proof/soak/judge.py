"""What was promised, against what is there: the history checker reads the tapes of all processes and the database.

What it cannot know is asked for beside it: what the producer was told when it asked, which jobs were meant to be one, and
what they were to give.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.store.reads import invariants
from faultline_proof import tape
from faultline_proof.checker import check
from faultline_proof.faults import Limits, Rule
from faultline_proof.history import Final
from faultline_proof.reads import audit
from faultline_proof.soak import flows, mischief, schedules
from faultline_proof.soak.tasks import EFFECTS_WRITTEN, LONG_LEASE_SECONDS, STUMBLING, WITH_EFFECT, WITH_STEPS
from faultline_proof.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from faultline.store.database import Database
    from faultline_proof.faults import Fault
    from faultline_proof.reads.holdings import JobHeld
    from faultline_proof.soak.limits import Looks
    from faultline_proof.soak.producer import Record

LOST = "acknowledged jobs lost"
TWICE = "jobs and effects that are not there exactly once"
OTHERS = "other promises broken"
_CLAIMS = {Rule.KEPT: LOST, Rule.ONCE: TWICE, Rule.EFFECT_ONCE: TWICE}
_SHOWN, _STORIES_SHOWN = 20, 3
#: A lease, a sweep, a backoff, its own work, and on a busy machine a whole backlog of others before it.
_SECONDS_TO_END = LONG_LEASE_SECONDS + 40.0


_LOST, _OPEN = ("failed", "cancelled"), ("queued", "running")


@dataclass(frozen=True, slots=True)
class Judgement:
    #: Jobs that the producer has got.
    acknowledged: int
    operations: int
    #: How long it took to judge them.
    seconds: float
    #: Flows that succeeded.
    flows: int
    #: Moments of schedules that were decided.
    ticks: int
    checks: list[Check]


def judge(
    database: Database,
    tapes: Sequence[Path],
    record: Record,
    *,
    over: bool,
    calm_at: float | None = None,
    ticked_until: float | None = None,
    looks: Looks | None = None,
) -> Judgement:
    """`over`: all has drained, so every job must be done. `calm_at`: when the faults stopped, and `ticked_until`: what all
    schedules have come past, in the database's time.
    """
    begun = time.monotonic()
    with database.connection() as connection:
        # A promoted server does not know how much was written before, and would plan for tables that are almost empty.
        connection.execute("analyze")
        final = Final.read(connection, effects=EFFECTS_WRITTEN)
    history = tape.read(tapes, until=begun)
    faults: dict[str, list[Fault]] = {LOST: [], TWICE: [], OTHERS: []}
    for fault in check(history, final, _limits(calm_at, ticked_until)):
        faults[_CLAIMS.get(fault.rule, OTHERS)].append(fault)
    seconds = time.monotonic() - begun
    acknowledged = {op.job_id for op in history.operations if op.verb == "saw"}
    ask: Callable[..., Any] = database.run
    succeeded = ask(audit.results_of(list(flows.SHARES)))
    checks = [
        *(none_of(claim, broken, _STORIES_SHOWN) for claim, broken in faults.items()),
        none_of("innocent jobs that failed", [_told(job) for job in final.jobs if _is_innocent(job) and job.state in _LOST]),
        none_of("jobs that are not over", [_told(job) for job in final.jobs if over and job.state in _OPEN]),
        none_of("jobs that had to fail and did not", [_told(job) for job in final.jobs if _has_succeeded_wrongly(job)]),
        none_of("submissions of which only a part is there", record.halves),
        none_of("submissions that became two jobs", ask(audit.numbers_twice())),
        none_of("jobs that were not there when asked for, and are there", list(ask(audit.there(record.absent)))),
        none_of("jobs whose result differs from their steps", ask(audit.steps_that_differ(WITH_STEPS))),
        none_of("flows whose result is wrong", _wrong_flows(succeeded)),
        none_of("atomic steps that ran twice", ask(audit.twice_in("soak_marks"))),
        none_of("limits exceeded when looked at", looks.exceeded if looks is not None else []),
        none_of("permits that did not come back", [held for held in final.permits if over and held.holding]),
        none_of("jobs that name another tick than their own", ask(audit.jobs_of_other_ticks())),
        none_of("invariants broken", [violation.invariant for violation in invariants.violations(ask)]),
    ]
    return Judgement(len(acknowledged), len(history.operations), seconds, len(succeeded), len(final.ticks), checks)


def _limits(calm_at: float | None, ticked_until: float | None) -> Limits:
    return Limits(
        effects_of=WITH_EFFECT,
        faults_stopped_at=calm_at,
        seconds_to_end=lambda _: _SECONDS_TO_END,
        own_failures=_own_failures,
        ticked=frozenset({schedules.TASK, schedules.SLOW}),
        every=schedules.EVERY,
        catch_up=schedules.CATCH_UP,
        overlap=schedules.OVERLAP,
        ticked_until=ticked_until,
    )


def _own_failures(job: JobHeld) -> int:
    """In how many attempts a job may have failed by itself."""
    if not _is_innocent(job):
        return job.max_attempts
    return int(job.task in STUMBLING)


def _is_innocent(job: JobHeld) -> bool:
    return job.task not in mischief.DOOMED | mischief.ANY_END | flows.DOOMED | flows.ANY_END


def _has_succeeded_wrongly(job: JobHeld) -> bool:
    return job.task in mischief.DOOMED | flows.DOOMED and job.state == "succeeded"


def _wrong_flows(results: list[audit.Result]) -> list[str]:
    return [
        f"{found.job_id} ({found.task}: {found.result})"
        for found in results
        if flows.wrong(found.task, found.n, found.result)
    ]


def _told(job: JobHeld) -> str:
    return f"{job.job_id} ({job.task}, {job.state})"


def none_of(claim: str, found: Sequence[Any], shown: int = _SHOWN) -> Check:
    """A list that must be empty. Of a long one the beginning is enough to look further."""
    told = ", ".join(map(str, found[:shown])) + (", ..." if len(found) > shown else "")
    return Check(claim, f"{len(found):,} ({told})" if found else 0, not found)
