"""Read jobs, for people and workers. Each read is one statement, so a job that moves between tables is seen once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - FastAPI looks at the types of fields
from typing import TYPE_CHECKING, NamedTuple

from faultline.core.journal import about
from faultline.core.model import JobRecord, JobState, JournalEntry, Json, Reason
from faultline.core.settings import DatabaseSettings
from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, as_json, as_shown_json, value, values
from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from faultline.core.model import Bound, Lease


@dataclass(frozen=True, slots=True)
class FinalState:
    """How a job ended: with a result, or with an error."""

    job_id: UUID
    state: JobState
    result: Json
    error: str | None


class Standing(NamedTuple):
    """How far a job is. `error`: the first line of its last one."""

    state: JobState
    attempt: int
    max_attempts: int
    due_at: datetime | None
    owner: str | None
    suspended: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """A completed step of a job."""

    name: str
    fencing_token: int
    recorded_at: datetime
    result: Json


class Span(NamedTuple):
    """When the first job was claimed and the last one completed."""

    first: datetime
    last: datetime


class _Held(NamedTuple):
    id: UUID
    fencing_token: int
    owner: str | None
    state: JobState


_STATE = Column("state", JobState)
#: When a job is due. While it waits in its group, `next_run_at` lies in the last year: nobody claims it the plain way.
TRUE_TIME = "coalesce(group_at, next_run_at)"
JOB = RowOf(
    JobRecord,
    state=_STATE,
    next_run_at=TRUE_TIME,
    suspended="coalesce(suspended, false)",
    group="group_key",
    in_group="group_at is not null",
    progress=as_shown_json("progress"),
    args=as_shown_json("args", jsontext.decode_args),
    result=as_shown_json("result"),
)
_ENDING = RowOf(FinalState, job_id="id", state=_STATE, result=as_json("result"), error="last_error")
_STANDING = RowOf(
    Standing,
    state=_STATE,
    due_at=TRUE_TIME,
    suspended="coalesce(suspended, false)",
    error="regexp_replace(split_part(last_error, E'\\n', 1), '^(.{199})..+', '\\1…')",
)
_HELD = RowOf(_Held, state=_STATE)
_SPAN = RowOf(Span, first="min(claimed_at)", last="max(finished_at)")
_ENTRY = RowOf(JournalEntry, detail=as_shown_json("detail"))
_STEP = RowOf(Step, result=as_shown_json("result"))


def job(job_id: object) -> Statement[JobRecord | None]:
    return Statement(
        name="job",
        sql=f"select {JOB.columns} from faultline.jobs where id = %s",
        params=(job_id,),
        read=JOB.first,
        repeatable=True,
        reads=True,
    )


def ids_between(least: UUID, greatest: UUID, *, ids_max: int) -> Statement[list[UUID]]:
    """The first ids of this range, of all jobs."""
    return Statement(
        name="ids_between",
        sql="select id from faultline.jobs where id between %s and %s order by id limit %s",
        params=(least, greatest, ids_max),
        read=values,
        repeatable=True,
        reads=True,
    )


def lost(leases: Sequence[Lease]) -> Statement[dict[Lease, Reason]]:
    """Which of these leases are lost, and why. Read only: nothing is written or refused."""

    def read(rows: Rows) -> dict[Lease, Reason]:
        found = {held.id: held for held in _HELD.many(rows)}
        reasons = {lease: _why_lost(lease, found.get(lease.job_id)) for lease in leases}
        return {lease: reason for lease, reason in reasons.items() if reason is not None}

    return Statement(
        name="lost",
        sql=f"select {_HELD.columns} from faultline.jobs where id = any(%s)",
        params=([lease.job_id for lease in leases],),
        read=read,
        repeatable=True,
        reads=True,
    )


def _why_lost(lease: Lease, found: _Held | None) -> Reason | None:
    if found is None:
        return Reason.NOT_RUNNING
    if found.fencing_token != lease.fencing_token or found.owner not in (None, lease.owner):
        return Reason.TOKEN_MISMATCH
    if found.owner == lease.owner:
        # Running, or completed by this very lease.
        return None
    return Reason.NOT_RUNNING if found.state.ended else Reason.LEASE_LOST


def due(queues: Sequence[str], bounds: Mapping[str, Sequence[Bound]] | None = None) -> Statement[list[str]]:
    """Which of these queues have a due job. Nothing below a queue's bounds is read."""
    known = [
        (name, bound) for name in queues for bound in sorted((bounds or {}).get(name, ()), key=lambda bound: bound.priority)
    ]
    return Statement(
        name="due",
        sql="select * from faultline.due(%s, %s, %s::integer[], %s::timestamptz[], %s::uuid[])",
        params=(
            list(queues),
            [name for name, _ in known],
            [bound.priority for _, bound in known],
            [bound.run_at for _, bound in known],
            [bound.id for _, bound in known],
        ),
        read=values,
        repeatable=True,
        reads=True,
        often=True,
    )


def final_states(job_ids: Sequence[UUID]) -> Statement[tuple[list[FinalState], dict[UUID, Standing]]]:
    """Which of these jobs have ended, and how far each is that exists at all."""

    def read(rows: Rows) -> tuple[list[FinalState], dict[UUID, Standing]]:
        found, standing = _ENDING.many(rows), _STANDING.many(rows, behind=_ENDING)
        known = {one.job_id: how for one, how in zip(found, standing, strict=True)}
        return [one for one in found if one.state.ended], known

    return Statement(
        name="final_states",
        sql=f"select {_ENDING.columns}, {_STANDING.columns} from faultline.jobs where id = any(%s)",
        params=(list(job_ids),),
        read=read,
        repeatable=True,
        reads=True,
    )


def still_held(leases: Sequence[Lease]) -> Statement[set[Lease]]:
    """Which of these leases are still held. Read after a lost answer, before anything is sent again."""
    return _leases_of_jobs("still_held", leases, "running")


def completed(leases: Sequence[Lease]) -> Statement[set[Lease]]:
    """Under which of these leases the job was completed."""
    return _leases_of_jobs("completed", leases, "succeeded")


def _leases_of_jobs(name: str, leases: Sequence[Lease], state: str) -> Statement[set[Lease]]:
    """The leases that are the last of their job, where it is in this state."""
    asked = {(lease.job_id, lease.fencing_token, lease.owner): lease for lease in leases}

    def read(rows: Rows) -> set[Lease]:
        found = {(held.id, held.fencing_token, held.owner) for held in _HELD.many(rows)}
        return {lease for proof, lease in asked.items() if proof in found}

    return Statement(
        name=name,
        sql=f"select {_HELD.columns} from faultline.jobs where id = any(%s) and state = '{state}'",
        params=([lease.job_id for lease in leases],),
        read=read,
        repeatable=True,
        reads=True,
    )


def traces(job_ids: Sequence[UUID]) -> Statement[dict[UUID, str]]:
    """The traces in which open jobs were enqueued."""
    return Statement(
        name="traces",
        sql="select id, trace from faultline.jobs where id = any(%s) and trace is not null",
        params=(list(job_ids),),
        read=dict,
        repeatable=True,
        reads=True,
    )


def counts() -> Statement[Counter[str]]:
    """How many jobs are in each state."""
    return Statement(
        name="counts",
        sql="select state, count(*) from faultline.jobs group by state",
        params=(),
        read=lambda rows: Counter(dict(rows)),
        repeatable=True,
        reads=True,
    )


def is_drained(queue: str) -> Statement[bool]:
    """Whether no job of a queue is queued or running. Cheap enough to be repeated under load."""
    return Statement(
        name="is_drained",
        sql="select not exists (select from faultline.open_jobs where queue = %s and state = 'queued')"
        " and not exists (select from faultline.open_jobs where queue = %s and state = 'running')",
        params=(queue, queue),
        read=value,
        repeatable=True,
        reads=True,
    )


def workers() -> Statement[list[str]]:
    """The ids of all workers."""
    return Statement(
        name="workers",
        sql="select id from faultline.workers order by id",
        params=(),
        read=values,
        repeatable=True,
        reads=True,
    )


def held_by(pid: int) -> Statement[list[UUID]]:
    """The jobs that a worker process of this machine holds."""
    return Statement(
        name="held_by",
        sql="select j.id from faultline.open_jobs j join faultline.workers w on w.id = split_part(j.lease_owner, '/', 1)"
        " where j.state = 'running' and w.pid = %s",
        params=(pid,),
        read=values,
        repeatable=True,
        reads=True,
    )


def span(queue: str) -> Statement[Span]:
    """When the first job of a queue was claimed and the last one completed."""
    return Statement(
        name="span",
        sql=f"select {_SPAN.columns} from faultline.ledger where queue = %s",
        params=(queue,),
        read=_SPAN.one,
        repeatable=True,
        reads=True,
    )


_SETTINGS = RowOf(DatabaseSettings)


def settings() -> Statement[DatabaseSettings | None]:
    """The settings for every program on the database; None if the row was deleted."""
    sql = f"select {_SETTINGS.columns} from faultline.settings"
    return Statement("settings", sql, (), _SETTINGS.first, repeatable=True, reads=True)


def clock() -> Statement[datetime]:
    """The database's time."""
    return Statement("clock", "select faultline.clock()", (), value, repeatable=True, reads=True)


def journal(job_id: object, *, entries_max: int | None = None) -> Statement[list[JournalEntry]]:
    """What happened to a job, in order; only the end of a long journal."""
    return Statement(
        name="journal",
        sql=f"select {_ENTRY.columns} from faultline.journal where job_id = %s order by id desc limit %s",
        params=(job_id, entries_max),
        read=lambda rows: _ENTRY.many(rows[::-1]),
        repeatable=True,
        reads=True,
    )


def operations(*, only_queues: Sequence[str] | None = None, keys: bool, entries_max: int) -> Statement[list[JournalEntry]]:
    """The last operations on queues, settings and, if wanted, API keys. Newest first."""
    queues = None if only_queues is None else list(only_queues)
    return Statement(
        name="operations",
        sql=f"select {_ENTRY.columns} from faultline.journal where job_id is null"
        " and event = any (%s) and (%s::text[] is null or detail ->> 'queue' = any (%s::text[])) order by id desc limit %s",
        params=(about("queue", "setting", *(("key",) if keys else ())), queues, queues, entries_max),
        read=_ENTRY.many,
        repeatable=True,
        reads=True,
    )


def steps(job_id: object) -> Statement[list[Step]]:
    """The completed steps of a job, in order of completion."""
    return Statement(
        name="steps",
        sql=f"select {_STEP.columns} from faultline.steps where job_id = %s order by recorded_at, name limit 1000",
        params=(job_id,),
        read=_STEP.many,
        repeatable=True,
        reads=True,
    )


def ledger_rows(job_id: object) -> Statement[int]:
    """How often this job was completed. More than one would be a violated guarantee."""
    return Statement(
        name="ledger_rows",
        sql="select count(*) from faultline.ledger where job_id = %s",
        params=(job_id,),
        read=value,
        repeatable=True,
        reads=True,
    )
