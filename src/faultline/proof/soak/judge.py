"""What was promised, against what is there: the producer's record against the database, number by number."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from faultline.core.model import JobState
from faultline.proof.drill import Check
from faultline.proof.soak.tasks import WITH_EFFECT, WITH_STEPS, effects
from faultline.store import audit, invariants

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from faultline.proof.soak.producer import Record
    from faultline.store.audit import Standing

LOST = "acknowledged jobs lost"
DUPLICATED = "jobs and effects duplicated"
_SHOWN = 20


def judge(ask: Callable[..., Any], record: Record, *, over: bool) -> list[Check]:
    """`ask` runs a statement. `over`: all has drained, so every acknowledged job must be done; otherwise it must exist."""
    jobs: list[Standing] = ask(audit.standing())
    written = ask(effects())
    done = {job.number: job for job in jobs if job.state == JobState.SUCCEEDED}
    alive = {job.number: job for job in jobs if job.state in (JobState.QUEUED, JobState.RUNNING)}
    expected = done if over else {**alive, **done}
    times_written = Counter(number for number, _ in written)
    wrong_token = [n for n, token in written if n not in done or done[n].fencing_token != token]
    lost = [n for n, job_id in record.acknowledged.items() if n not in expected or expected[n].job_id != job_id]
    lost += [n for n, job in done.items() if job.task in WITH_EFFECT and n not in times_written]
    twice = [n for n, times in Counter(job.number for job in jobs).items() if times > 1]
    twice += [n for n, times in times_written.items() if times > 1]
    present = {job.number for job in jobs}
    withdrawn = [n for n in (*record.absent, *record.withdrawn) if n in present]
    broken = [violation.invariant for violation in invariants.violations(ask)]
    return [
        none_of(LOST, lost),
        none_of(DUPLICATED, twice),
        none_of("effects of jobs that are not done, or of a stale token", wrong_token),
        none_of("submissions of which only a part is there", record.halves),
        none_of("jobs that were rolled back, or not there when asked for, and are there", withdrawn),
        none_of("jobs whose result differs from their steps", ask(audit.steps_that_differ(WITH_STEPS))),
        none_of("invariants broken", broken),
    ]


def none_of(claim: str, found: list[Any]) -> Check:
    """A list that must be empty. Of a long one the beginning is enough to look further."""
    shown = ", ".join(map(str, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
    return Check(claim, f"{len(found):,} ({shown})" if found else 0, not found)
