"""Everything the database holds of its jobs, for those who judge a run when it is over.

Read from the tables themselves, not through the views and verbs that are being judged. Times are seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap

from faultline.store.statement import Statement


@dataclass(frozen=True, slots=True)
class JobHeld:
    """One row of a job. `state` is `succeeded` for a row of the ledger."""

    job_id: str
    state: str
    task: str
    token: int
    owner: str | None
    attempt: int
    max_attempts: int
    created_at: float
    due_at: float | None
    finished_at: float | None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state that the journal tells of. What it does not tell of: claim, release, complete."""

    job_id: str
    event: str
    #: What the job was before, and with which token.
    was: str
    token_was: int
    state: str
    token: int
    #: Of an attempt that failed, what was stored of its error.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepHeld:
    job_id: str
    name: str
    token: int


def jobs() -> Statement[list[JobHeld]]:
    """Every row of every job: one that stands in two places is seen twice."""
    return Statement(
        name="all_jobs",
        sql="select id::text, state, task, fencing_token, lease_owner, attempt, max_attempts,"
        " extract(epoch from created_at)::float8, extract(epoch from next_run_at)::float8,"
        " extract(epoch from finished_at)::float8, idempotency_key from faultline.open_jobs"
        " union all"
        " select job_id::text, 'succeeded', task, fencing_token, owner, attempt, max_attempts,"
        " extract(epoch from created_at)::float8, null, extract(epoch from finished_at)::float8, idempotency_key"
        " from faultline.ledger",
        params=(),
        read=lambda rows: list(starmap(JobHeld, rows)),
        repeatable=True,
    )


def transitions() -> Statement[list[Transition]]:
    """The changes of state in the journal, each job's in their order: an entry is made under a lock on the job's row."""
    return Statement(
        name="transitions",
        sql="select job_id::text, event,"
        # What ended an attempt does not say what the job was before: it was running.
        " coalesce(detail ->> 'was', 'running') as was,"
        " coalesce((detail ->> 'token_was')::bigint, fencing_token),"
        " case event"
        "   when 'cancelled' then 'cancelled'"
        "   when 'retried' then 'queued'"
        "   when 'reconciled' then 'succeeded'"
        "   when 'recovered' then case detail ->> 'was' when 'running' then 'queued' else detail ->> 'was' end"
        "   else detail ->> 'state'"
        " end,"
        " fencing_token,"
        " detail ->> 'error'"
        " from faultline.journal where job_id is not null and event <> 'stale_write_blocked' order by id",
        params=(),
        read=lambda rows: list(starmap(Transition, rows)),
        repeatable=True,
    )


def steps() -> Statement[list[StepHeld]]:
    return Statement(
        name="all_steps",
        sql="select job_id::text, name, fencing_token from faultline.steps",
        params=(),
        read=lambda rows: list(starmap(StepHeld, rows)),
        repeatable=True,
    )


def time() -> Statement[float]:
    """What time it is in the database, in seconds since 1970."""
    return Statement(
        "time", "select extract(epoch from faultline.clock())::float8", (), lambda rows: float(rows[0][0]), repeatable=True
    )
