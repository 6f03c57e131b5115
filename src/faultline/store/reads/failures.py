"""Failed jobs in groups, to look at and to retry together. Only the newest are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from faultline.store.rows import Column, RowOf
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.store.statement import Rows

#: How many failed jobs a statement reads, newest first. Counts from a full window say "at least".
WINDOW = 10_000
#: When a job failed, and its id. The newest come first.
Cursor = tuple[datetime, UUID]
CURSOR_TYPES = ("timestamptz", "uuid")
_BATCH_MAX = 1000


@dataclass(frozen=True, slots=True)
class FailedFilter:
    """Which failed jobs. None: any."""

    queue: str | None = None
    task: str | None = None
    #: What the error begins with.
    error_prefix: str | None = None
    #: `Group.error_kind`: errors that differ only in ids and numbers have the same kind.
    error_kind: str | None = None
    only_queues: Sequence[str] | None = None
    #: Only jobs that failed before this one.
    before: Cursor | None = None

    def behind(self, cursor: Cursor) -> FailedFilter:
        return replace(self, before=cursor)


@dataclass(frozen=True, slots=True)
class Group:
    """Failed jobs of one task with one kind of error."""

    task: str
    error_kind: str
    jobs: int
    queues: list[str]
    first_at: datetime
    last_at: datetime
    #: The job that failed last.
    example: UUID


@dataclass(frozen=True, slots=True)
class Groups:
    groups: list[Group]
    #: The window was full: there may be more.
    at_least: bool
    #: As `FailedFilter.before`: the jobs that were counted, without those that failed since.
    until: Cursor | None


@dataclass(frozen=True, slots=True)
class Count:
    jobs: int
    #: As of `Groups`.
    at_least: bool
    until: Cursor | None


@dataclass(frozen=True, slots=True)
class Retried:
    jobs: int
    #: Jobs that match, and for which a retry cannot help: children of jobs that have ended, sagas that were undone.
    refused: int
    #: Where to go on; None when there is no more.
    behind: Cursor | None


class _Batch(NamedTuple):
    retried: int
    refused: int
    next_at: datetime | None
    next_id: UUID | None


_SEEN = f"""
with seen as materialized (
  select j.id, j.state, j.queue, j.task, j.finished_at, j.last_error as error
  from faultline.jobs j
  where j.state in ('failed', 'cancelled') and j.finished_at <= %s and (j.finished_at, j.id) < (%s, %s)
  order by j.finished_at desc, j.id desc
  limit {WINDOW}
),
fitting as (
  select * from seen
  where state = 'failed' and (%s::text is null or queue = %s) and (%s::text is null or task = %s)
    and (%s::text is null or starts_with(error, %s)) and (%s::text is null or faultline.error_kind(error) = %s)
    and (%s::text[] is null or queue = any (%s))
),
-- The cursor behind all that fit. It does not reveal when jobs of other queues failed.
ended as (
  select
    (select count(*) from seen) >= {WINDOW} as at_least,
    (select max(finished_at) + interval '1 microsecond' from fitting) as until
)
"""
_LOWEST = UUID(int=0)


def _until(at: datetime | None) -> Cursor | None:
    return None if at is None else (at, _LOWEST)


_COUNT = RowOf(Count, jobs="(select count(*) from fitting)", until=Column("until", _until))
_GROUP = RowOf(
    Group,
    error_kind="faultline.error_kind(error)",
    jobs="count(*)",
    queues="array_agg(distinct queue)",
    first_at="min(finished_at)",
    last_at="max(finished_at)",
    example="(array_agg(id order by finished_at desc, id desc))[1]",
)
_BATCH = RowOf(_Batch)


def count(which: FailedFilter) -> Statement[Count]:
    """How many jobs `retry` would retry, within the window."""
    return Statement(
        name="count_failed",
        sql=f"{_SEEN} select {_COUNT.columns} from ended",
        params=_params(which),
        read=_COUNT.one,
        repeatable=True,
        reads=True,
    )


def groups(which: FailedFilter, *, groups_max: int = 100) -> Statement[Groups]:
    """By task and kind of error, largest first."""

    def read(rows: Rows) -> Groups:
        ended, groups = _COUNT.one(rows), _GROUP.many(rows, behind=_COUNT)
        return Groups([group for group in groups if group.jobs], ended.at_least, ended.until)

    order = "jobs desc, last_at desc, task, error_kind"
    return Statement(
        name="failed_groups",
        sql=f"{_SEEN} select c.*, g.* from (select {_COUNT.columns} from ended) c left join lateral ("
        f"select {_GROUP.columns} from fitting group by 1, 2 order by {order} limit %s"
        f") g on true order by {', '.join(f'g.{one}' for one in order.split(', '))}",
        params=(*_params(which), groups_max),
        read=read,
        repeatable=True,
        reads=True,
    )


def retry(
    which: FailedFilter, *, max_jobs: int = _BATCH_MAX, by: str | None = None, reason: str | None = None
) -> Statement[Retried]:
    """Retry one batch of failed jobs. Not repeatable, but harmless: a retried job is no longer failed."""
    options: dict[str, Any] = {"queue": which.queue, "task": which.task, "error_prefix": which.error_prefix}
    options |= {"error_kind": which.error_kind, "max_jobs": max_jobs, "by": by, "reason": reason}
    if which.before is not None:
        options["before_at"], options["before_id"] = which.before
    words = ", ".join(f"{name} => %s" for name in options)
    return Statement(
        name="retry_failed",
        sql=f"select {_BATCH.columns} from faultline.retry_failed({words}, only_queues => %s::text[])",
        params=(*options.values(), None if which.only_queues is None else list(which.only_queues)),
        read=_retried,
    )


def _retried(rows: Rows) -> Retried:
    batch = _BATCH.one(rows)
    return Retried(
        batch.retried,
        batch.refused,
        None if batch.next_at is None or batch.next_id is None else (batch.next_at, batch.next_id),
    )


def _params(which: FailedFilter) -> tuple[Any, ...]:
    at, job_id = which.before or ("infinity", "ffffffff-ffff-ffff-ffff-ffffffffffff")
    queues = None if which.only_queues is None else list(which.only_queues)
    asked = (which.queue, which.task, which.error_prefix, which.error_kind, queues)
    return (at, at, job_id, *(value for wanted in asked for value in (wanted, wanted)))
