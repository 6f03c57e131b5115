"""Read a whole database and its sessions, to check them: every job, every refusal, who holds what.

Most of these read whole tables. Nothing that serves jobs uses them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from faultline.core.journal import JournalEvent
from faultline.store.rows import RowOf, value, values
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import Json


class Held(NamedTuple):
    """A job that a worker holds, and the database's time of the look."""

    job_id: UUID
    fencing_token: int
    at: datetime


class Result(NamedTuple):
    """The result of a job that has succeeded, and the number that it was enqueued with."""

    job_id: UUID
    task: str
    n: int
    result: Json


class Claim(NamedTuple):
    """When a job was last claimed, and whether it has ended since."""

    job_id: UUID
    fencing_token: int
    at: datetime
    ended: bool


_TOKEN = "fencing_token"  # noqa: S105 - a column, no secret
_HELD = RowOf(Held, job_id="j.id", fencing_token=f"j.{_TOKEN}", at="faultline.clock()")
_CLAIM = RowOf(Claim, job_id="id", at="claimed_at", ended="finished_at is not null")
_RESULT = RowOf(Result, n="(args ->> 'n')::bigint")
_NUMBER = "(args ->> 'n')::bigint"


def there(numbers: Sequence[int]) -> Statement[dict[int, UUID]]:
    """The jobs that exist of these numbers: each job has its number as the argument `n`."""
    return Statement(
        name="there",
        sql=f"select {_NUMBER}, id from faultline.jobs where {_NUMBER} = any(%s)",
        params=(list(numbers),),
        read=dict,
        repeatable=True,
    )


def numbers_twice() -> Statement[list[int]]:
    """The numbers of more than one job."""
    return Statement(
        name="numbers_twice",
        sql=f"select {_NUMBER} from faultline.jobs where {_NUMBER} is not null group by 1 having count(*) > 1",
        params=(),
        read=values,
        repeatable=True,
    )


def unfinished() -> Statement[int]:
    """How many jobs are queued or running."""
    return Statement(
        name="unfinished",
        sql="select count(*) from faultline.open_jobs where state in ('queued', 'running')",
        params=(),
        read=value,
        repeatable=True,
    )


def held_by(pid: int) -> Statement[list[Held]]:
    """The jobs that a worker process of this machine holds."""
    return Statement(
        name="held_by",
        sql=f"select {_HELD.columns}"
        " from faultline.open_jobs j join faultline.workers w on w.id = split_part(j.lease_owner, '/', 1)"
        " where j.state = 'running' and w.pid = %s",
        params=(pid,),
        read=_HELD.many,
        repeatable=True,
    )


def claims(job_ids: Sequence[UUID]) -> Statement[list[Claim]]:
    """The last claim of each of these jobs."""
    return Statement(
        name="claims",
        sql=f"select {_CLAIM.columns} from faultline.jobs where id = any(%s) and claimed_at is not null",
        params=(list(job_ids),),
        read=_CLAIM.many,
        repeatable=True,
    )


def refusals() -> Statement[Counter[str]]:
    """The refused writes in the journal, by verb and reason."""
    return Statement(
        name="refusals",
        sql="select (detail ->> 'verb') || ': ' || (detail ->> 'reason'), count(*)"
        f" from faultline.journal where event = '{JournalEvent.STALE_WRITE_BLOCKED}' group by 1 order by 2 desc",
        params=(),
        read=lambda rows: Counter(dict(rows)),
        repeatable=True,
    )


def reaps() -> Statement[Counter[str]]:
    """The reaped leases in the journal, by reason."""
    return Statement(
        name="reaps",
        sql="select detail ->> 'reason', count(*) from faultline.journal"
        f" where event = '{JournalEvent.LEASE_REAPED}' group by 1 order by 2 desc",
        params=(),
        read=lambda rows: Counter(dict(rows)),
        repeatable=True,
    )


def steps_that_differ(tasks: Sequence[str]) -> Statement[list[UUID]]:
    """The completed jobs of these tasks whose result is not the list of their steps' results, sorted by step name."""
    return Statement(
        name="steps_that_differ",
        sql="select f.job_id from faultline.ledger f where f.task = any(%s) and f.result is distinct from"
        " coalesce((select jsonb_agg(s.result order by s.name) from faultline.steps s where s.job_id = f.job_id), '[]')",
        params=(list(tasks),),
        read=values,
        repeatable=True,
    )


def results_of(tasks: Sequence[str]) -> Statement[list[Result]]:
    """The results of the completed jobs of these tasks."""
    return Statement(
        name="results_of",
        sql=f"select {_RESULT.columns} from faultline.ledger where task = any(%s)",
        params=(list(tasks),),
        read=_RESULT.many,
        repeatable=True,
    )


def open_of(tasks: Sequence[str]) -> Statement[list[UUID]]:
    """The jobs of these tasks that have not ended."""
    return Statement(
        name="open_of",
        sql="select id from faultline.open_jobs where state in ('queued', 'running') and task = any(%s) order by id",
        params=(list(tasks),),
        read=values,
        repeatable=True,
    )


def twice_in(table: str) -> Statement[list[UUID]]:
    """The jobs that stand more than once in this table of a proof."""
    return Statement(
        name="twice_in",
        sql=f"select job_id from {table} group by 1 having count(*) > 1",
        params=(),
        read=values,
        repeatable=True,
    )


def sessions() -> Statement[list[int]]:
    """The sessions of all other clients of this database."""
    return Statement(
        name="sessions",
        sql="select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
        " and pid <> pg_backend_pid() order by pid",
        params=(),
        read=values,
        repeatable=True,
    )


def end_sessions(pids: Sequence[int]) -> Statement[int]:
    """Cut these connections. Returns how many there were."""
    return Statement(
        name="end_sessions",
        sql="select count(*) filter (where pg_terminate_backend(pid)) from unnest(%s::integer[]) as pid"
        " where pid <> pg_backend_pid()",
        params=(list(pids),),
        read=value,
    )


def cancel_statements(most: int) -> Statement[int]:
    """Cancel the statements of some sessions. Returns how many ran one.

    Not of those that wait for a synchronous standby: the server would report their commit as done, though it might be lost
    with this server.
    """
    return Statement(
        name="cancel_statements",
        sql="select count(*) filter (where pg_cancel_backend(pid)) from (select pid from pg_stat_activity"
        " where datname = current_database() and backend_type = 'client backend' and state <> 'idle'"
        " and pid <> pg_backend_pid() and wait_event is distinct from 'SyncRep' and query !~* '^commit'"
        " order by random() limit %s) chosen",
        params=(most,),
        read=value,
    )


def waiting_for(table: str) -> Statement[int]:
    """How many sessions wait for a lock on a table."""
    return Statement(
        name="waiting_for",
        sql="select count(*) from pg_locks where not granted and relation = %s::regclass",
        params=(table,),
        read=value,
        repeatable=True,
    )


def running(most: int) -> Statement[list[UUID]]:
    """Some running jobs."""
    return Statement(
        name="some_running",
        sql="select id from faultline.open_jobs where state = 'running' limit %s",
        params=(most,),
        read=values,
        repeatable=True,
    )


def running_in(queue: str) -> Statement[Counter[str]]:
    """How many jobs of each group of a queue run, at one moment. Those of no group have an empty key."""
    return Statement(
        name="running_in",
        sql="select coalesce(group_key, ''), count(*) from faultline.open_jobs"
        " where queue = %s and state = 'running' group by 1",
        params=(queue,),
        read=lambda rows: Counter(dict(rows)),
        repeatable=True,
    )


def schedules_left() -> Statement[dict[str, bool]]:
    """The schedules that are not paused, and whether a tick of each waits for its decision."""
    return Statement(
        name="schedules_left",
        sql="select name, next_at is null or next_at <= faultline.clock() from faultline.schedules"
        " where paused_at is null and ended_at is null",
        params=(),
        read=dict,
        repeatable=True,
    )


def jobs_of_other_ticks() -> Statement[list[UUID]]:
    """The jobs that name another tick in their argument `at` than the one that made them."""
    return Statement(
        name="jobs_of_other_ticks",
        sql="select t.job_id from faultline.ticks t join faultline.jobs j on j.id = t.job_id"
        " where (j.args ->> 'at')::timestamptz is distinct from t.at",
        params=(),
        read=values,
        repeatable=True,
    )


def notify(payloads: Sequence[str]) -> Statement[int]:
    """Send notifications on the channel that workers listen to, as any login may."""
    return Statement(
        name="notify",
        sql="select count(pg_notify('faultline', payload)) from unnest(%s::text[]) as payload",
        params=(list(payloads),),
        read=value,
    )


def ended_of(tasks: Sequence[str]) -> Statement[int]:
    """How many jobs of these tasks have ended."""
    return Statement(
        name="ended_of",
        sql="select count(*) from faultline.jobs where task = any(%s) and finished_at is not null",
        params=(list(tasks),),
        read=value,
        repeatable=True,
    )


def server_start() -> Statement[datetime]:
    """When the server started, which shows a restart."""
    return Statement("server_start", "select pg_postmaster_start_time()", (), value, repeatable=True)
