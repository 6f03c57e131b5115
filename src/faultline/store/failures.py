"""Failed jobs, in groups: what people look at after a bad night, and retry together. Only the newest are looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from faultline.store.queue import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

#: How many failed jobs a question looks at, the newest first. Counts from a full window say "at least".
WINDOW = 10_000
_BATCH_MAX = 1000


@dataclass(frozen=True, slots=True)
class Failed:
    """Which failed jobs: all, or those of a queue, of a task, whose error begins with a text, of some queues only."""

    queue: str | None = None
    task: str | None = None
    error_prefix: str | None = None
    only_queues: Sequence[str] | None = None
    #: Only those that failed before this place; the newest have none before them.
    before: tuple[datetime, UUID] | None = None

    def behind(self, place: tuple[datetime, UUID]) -> Failed:
        return replace(self, before=place)


@dataclass(frozen=True, slots=True)
class Group:
    """Failed jobs of one task with the same first line of their errors."""

    task: str
    error: str
    jobs: int
    queues: list[str]
    first_at: datetime
    last_at: datetime
    #: The one that failed last.
    example: UUID


@dataclass(frozen=True, slots=True)
class Count:
    jobs: int
    #: The window was full: there may be more.
    at_least: bool


@dataclass(frozen=True, slots=True)
class Retried:
    jobs: int
    #: Where to go on; None when there is no more.
    behind: tuple[datetime, UUID] | None


_SEEN = f"""
with seen as materialized (
  select j.id, j.state, j.queue, j.task, j.finished_at, coalesce(j.last_error, '') as error
  from faultline.jobs j
  where j.state in ('failed', 'cancelled') and j.finished_at <= %s and (j.finished_at, j.id) < (%s, %s)
  order by j.finished_at desc, j.id desc
  limit {WINDOW}
),
fitting as (
  select * from seen
  where state = 'failed' and (%s::text is null or queue = %s) and (%s::text is null or task = %s)
    and (%s::text is null or starts_with(error, %s)) and (%s::text[] is null or queue = any (%s))
)
"""


def count(which: Failed) -> Statement[Count]:
    """How many jobs `retry` would retry, as far as it looks."""
    return Statement(
        name="count_failed",
        sql=f"{_SEEN} select (select count(*) from fitting), (select count(*) from seen)",
        params=_params(which),
        read=lambda rows: Count(rows[0][0], rows[0][1] >= WINDOW),
        repeatable=True,
    )


def groups(which: Failed, *, groups_max: int = 100) -> Statement[tuple[list[Group], bool]]:
    """Groups, the largest first, and whether there may be more failed jobs than were looked at."""
    return Statement(
        name="failed_groups",
        sql=f"{_SEEN} select task, left(split_part(error, e'\\n', 1), 500), count(*), array_agg(distinct queue),"
        " min(finished_at), max(finished_at), (array_agg(id order by finished_at desc, id desc))[1],"
        " (select count(*) from seen)"
        " from fitting group by 1, 2 order by 3 desc, 6 desc, 1, 2 limit %s",
        params=(*_params(which), groups_max),
        read=lambda rows: ([Group(*row[:7]) for row in rows], bool(rows) and rows[0][7] >= WINDOW),
        repeatable=True,
    )


def retry(which: Failed, *, max_jobs: int = _BATCH_MAX) -> Statement[Retried]:
    """Retry failed jobs, one batch of them. Not repeatable, but no harm is done: what was retried is failed no more."""
    options: dict[str, Any] = {"queue": which.queue, "task": which.task, "error_prefix": which.error_prefix}
    options["max_jobs"] = max_jobs
    if which.before is not None:
        options["before_at"], options["before_id"] = which.before
    words = ", ".join(f"{name} => %s" for name in options)
    return Statement(
        name="retry_failed",
        sql=f"select retried, next_at, next_id from faultline.retry_failed({words}, only_queues => %s::text[])",
        params=(*options.values(), None if which.only_queues is None else list(which.only_queues)),
        read=lambda rows: Retried(rows[0][0], None if rows[0][1] is None else (rows[0][1], rows[0][2])),
    )


def _params(which: Failed) -> tuple[Any, ...]:
    at, job_id = which.before or ("infinity", "ffffffff-ffff-ffff-ffff-ffffffffffff")
    queues = None if which.only_queues is None else list(which.only_queues)
    return (
        at, at, job_id, which.queue, which.queue, which.task, which.task, which.error_prefix, which.error_prefix,
        queues, queues,
    )  # fmt: skip
