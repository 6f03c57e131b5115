"""Queued and running jobs that match, to count and to cancel together. The highest ids first, a window at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from faultline.core.errors import JobRejected
from faultline.core.states import JobState
from faultline.store.rows import RowOf
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.store.statement import Rows

#: How many jobs a statement reads. Where a window was full, there may be more.
WINDOW = 10_000
CURSOR_TYPES = ("uuid",)
_BATCH_MAX = 1000
_STATES = (JobState.QUEUED, JobState.RUNNING)
_HIGHEST = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True)
class UnendedFilter:
    """Which queued and running jobs. None: any; but not all of them: a filter that was forgotten must not cancel them."""

    queue: str | None = None
    task: str | None = None
    group: str | None = None
    state: JobState | None = None
    only_queues: Sequence[str] | None = None
    #: Only jobs with a lower id.
    before: UUID | None = None

    def __post_init__(self) -> None:
        if self.queue is self.task is self.group is self.state is None:
            raise JobRejected("say which jobs to cancel: by queue, task, group or state")
        if self.state is not None and self.state not in _STATES:
            raise JobRejected(f"a job that has {self.state} cannot be cancelled; the state is queued or running")

    def behind(self, cursor: UUID) -> UnendedFilter:
        return replace(self, before=cursor)


@dataclass(frozen=True, slots=True)
class Count:
    queued: int
    running: int
    #: Where the next window begins; None: there is none.
    behind: UUID | None
    #: As `UnendedFilter.before`: the jobs that were counted, without those that were enqueued since. None: there are none.
    until: UUID | None

    @property
    def jobs(self) -> int:
        return self.queued + self.running


@dataclass(frozen=True, slots=True)
class Cancelled:
    jobs: int
    #: Where to go on; None when there is no more.
    behind: UUID | None


class _Counted(NamedTuple):
    queued: int
    running: int
    newest: UUID | None
    behind: UUID | None


class _Batch(NamedTuple):
    cancelled: int
    next_id: UUID | None


_COUNTED = RowOf(
    _Counted,
    queued="count(*) filter (where fits and state = 'queued')",
    running="count(*) filter (where fits and state = 'running')",
    newest="(array_agg(id order by id desc) filter (where fits))[1]",
    behind=f"(array_agg(id) filter (where position = {WINDOW}))[1]",
)
_BATCH = RowOf(_Batch)


def count(which: UnendedFilter) -> Statement[Count]:
    """How many jobs `cancel` would cancel, within the window."""

    def read(rows: Rows) -> Count:
        found = _COUNTED.one(rows)
        until = None if found.newest is None else UUID(int=min(found.newest.int + 1, _HIGHEST.int))
        return Count(found.queued, found.running, found.behind, until)

    given = {name: value for name, value in _asked(which).items() if value is not None}
    fits = " and ".join(["state in ('queued', 'running')", *(f"{name} = %s" for name in given)])
    only = "" if which.only_queues is None else " and queue = any (%s)"
    bound = () if which.only_queues is None else (list(which.only_queues),)
    return Statement(
        name="count_unended",
        # Succeeded jobs lie elsewhere, and are not read: they have no `next_run_at`.
        sql=f"select {_COUNTED.columns} from ("
        f" select id, state, {fits}{only} as fits, row_number() over (order by id desc) as position"
        f" from faultline.jobs where next_run_at is not null and id < %s order by id desc limit {WINDOW}"
        f") seen",
        params=(*given.values(), *bound, which.before or _HIGHEST),
        read=read,
        repeatable=True,
        reads=True,
    )


def cancel(
    which: UnendedFilter, *, max_jobs: int = _BATCH_MAX, by: str | None = None, reason: str | None = None
) -> Statement[Cancelled]:
    """Cancel one batch. Not repeatable, but harmless: a cancelled job is not cancelled again."""
    options: dict[str, Any] = {**_asked(which), "max_jobs": max_jobs, "by": by, "reason": reason}
    options["before_id"] = which.before or _HIGHEST
    words = ", ".join(f"{name} => %s" for name in options)
    return Statement(
        name="cancel_jobs",
        sql=f"select {_BATCH.columns} from faultline.cancel_jobs({words}, only_queues => %s::text[])",
        params=(*options.values(), None if which.only_queues is None else list(which.only_queues)),
        read=_cancelled,
    )


def _asked(which: UnendedFilter) -> dict[str, str | None]:
    state = None if which.state is None else which.state.value
    return {"queue": which.queue, "task": which.task, "group_key": which.group, "state": state}


def _cancelled(rows: Rows) -> Cancelled:
    batch = _BATCH.one(rows)
    return Cancelled(batch.cancelled, batch.next_id)
