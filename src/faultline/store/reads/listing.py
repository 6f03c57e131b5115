"""List jobs, a page at a time. However many jobs there are, a page reads 10,000 of them at the most.

A page begins behind a cursor, not at an offset: jobs that come and go meanwhile neither repeat nor hide the others. An index
gives the order: by id, newest first; failed and cancelled jobs by when they ended; the queued jobs of one queue in the order
in which they will run. Jobs of a group that have not succeeded are found by an index, and come by id. All other filters
apply within this window, and a page that ends with it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.core.model import JobState, JobSummary
from faultline.store.reads.views import TRUE_TIME
from faultline.store.rows import Column, RowOf
from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

WINDOW = 10_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs. None: any."""

    state: JobState | None = None
    queue: str | None = None
    task: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    #: An idempotency key as the client gave it, with any API key or outside HTTP.
    key: str | None = None
    group: str | None = None
    #: Only jobs of these queues exist for the caller.
    only_queues: Sequence[str] | None = None


class _Seen(NamedTuple):
    """Whether a job matches the filters, and its position in the window."""

    fits: bool
    position: int
    #: As the index has it: of a job that waits in its group it lies in the last year.
    ready_at: datetime | None


_JOB = RowOf(
    JobSummary,
    state=Column("state", JobState),
    last_error="left(last_error, 2000)",
    suspended="coalesce(suspended, false)",
    next_run_at=TRUE_TIME,
    group="group_key",
    in_group="group_at is not null",
)
_SEEN = RowOf(_Seen, ready_at="next_run_at")
#: What the rows of a window need.
_READ = ", ".join([*(name for name in _JOB.names if name not in {"group", "in_group"}), "group_key", "group_at"])
#: The values of a row by which its list is ordered.
Cursor = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Page:
    jobs: list[JobSummary]
    #: Where the next page begins; None when there is none.
    behind: Cursor | None
    #: The page ends because the window did: more jobs may match further on.
    stopped_early: bool


@dataclass(frozen=True, slots=True)
class Order:
    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    descending: bool


BY_ID = Order("id", ("id",), ("uuid",), descending=True)
BY_END = Order("end", ("finished_at", "id"), ("timestamptz", "uuid"), descending=True)
BY_TURN = Order("turn", ("priority", "next_run_at", "id"), ("smallint", "timestamptz", "uuid"), descending=False)


def order_of(wanted: Wanted) -> Order:
    """The order of this list, which is also the kind of its cursors."""
    if _is_of_group(wanted):
        return BY_ID
    if wanted.state in (JobState.FAILED, JobState.CANCELLED):
        return BY_END
    if wanted.state is JobState.QUEUED and wanted.queue is not None:
        return BY_TURN
    return BY_ID


def jobs(wanted: Wanted, *, page_jobs: int, behind: Cursor | None = None) -> Statement[Page]:
    order = order_of(wanted)
    behind_cursor, cursor_params = _behind(order, behind)
    scopes = _scopes(wanted, order)
    fits, fits_params = _fits(wanted, order)
    direction = " desc" if order.descending else ""
    by = ", ".join(f"{column}{direction}" for column in order.columns)
    # Of the window's rows: `next_run_at` alone would be the one that is shown.
    by_seen = ", ".join(f"seen.{column}{direction}" for column in order.columns)
    # A window of each: together they would be sorted, and for that all be read.
    window = f" order by {by} limit {WINDOW}" if len(scopes) > 1 else ""
    read = " union all ".join(
        f"(select {_READ} from faultline.jobs where {scope} and {behind_cursor}{window})" for scope, _ in scopes
    )
    return Statement(
        name="list_jobs",
        # The last row of a full window is read even if it does not match: the next page begins behind it.
        sql=f"select {_SEEN.columns}, {_JOB.columns} from ("
        f" select {_READ}, ({fits}) as fits, row_number() over (order by {by}) as position"
        f" from ({read}) listed order by {by} limit {WINDOW}"
        f") seen where fits or position = {WINDOW} order by {by_seen} limit %s",
        params=(*fits_params, *(one for _, params in scopes for one in (*params, *cursor_params)), page_jobs + 1),
        read=lambda rows: _page(rows, order, page_jobs),
        repeatable=True,
        reads=True,
    )


def _behind(order: Order, behind: Cursor | None) -> tuple[str, tuple[Any, ...]]:
    if behind is None:
        return "true", ()
    sign = "<" if order.descending else ">"
    values = ", ".join(f"%s::{kind}" for kind in order.types)
    first = f"{order.columns[0]} {sign}= %s::{order.types[0]}"  # an index on the first column alone can use this
    return f"{first} and ({', '.join(order.columns)}) {sign} ({values})", (behind[0], *behind)


def _is_of_group(wanted: Wanted) -> bool:
    """Whether the index of groups finds them, as far as they have not succeeded."""
    return wanted.group is not None and wanted.key is None and wanted.state is not JobState.SUCCEEDED


def _scopes(wanted: Wanted, order: Order) -> list[tuple[str, tuple[Any, ...]]]:
    """The conditions that an index can find. Several: jobs that meet any of them."""
    if wanted.key is not None:
        return [(_OF_KEY, (wanted.key,))]
    if _is_of_group(wanted):
        open_jobs = (f"{_SCOPES.get(wanted.state, _NOT_SUCCEEDED)} and group_key = %s", (wanted.group,))
        return [open_jobs] if wanted.state is not None else [open_jobs, (_SCOPES[JobState.SUCCEEDED], ())]
    # States as literals: the planner uses a partial index only if it sees the state in the query.
    if order is BY_TURN:
        return [("state = 'queued' and queue = %s", (wanted.queue,))]
    return [(_SCOPES.get(wanted.state, "true"), ())]


_NOT_SUCCEEDED = "state <> 'succeeded'"
#: Where an index holds more states than the wanted one, the window limits the search: a cancelled job may stand behind a
#: million failed ones.
_SCOPES: dict[JobState | None, str] = {
    # Open jobs have a `next_run_at` by a constraint, so the plan skips their table. With the state alone it would read it.
    JobState.SUCCEEDED: "state = 'succeeded' and next_run_at is null",
    JobState.RUNNING: "state = 'running'",
    JobState.QUEUED: _NOT_SUCCEEDED,
    JobState.FAILED: "state in ('failed', 'cancelled')",
    JobState.CANCELLED: "state in ('failed', 'cancelled')",
}


#: The key of a job that came over HTTP is stored with the name of its API key.
_OF_KEY = """id in (
  select k.job_id
  from (select %s::text) as given (key)
  cross join lateral (
    select given.key
    union all
    select 'http:loopback:' || given.key
    union all
    select 'http:' || replace(a.id::text, '-', '') || ':' || given.key from faultline.api_keys a
  ) as kept (key)
  join faultline.keys k on k.key = kept.key
)"""


def _fits(wanted: Wanted, order: Order) -> tuple[str, tuple[Any, ...]]:
    """The conditions that are checked within the window."""
    asked: list[tuple[str, Any]] = []
    if wanted.state is not None:
        asked.append(("state = %s", wanted.state.value))
    if wanted.queue is not None and (order is not BY_TURN or wanted.key is not None):
        asked.append(("queue = %s", wanted.queue))
    if wanted.task is not None:
        asked.append(("task = %s", wanted.task))
    if wanted.group is not None:
        asked.append(("group_key = %s", wanted.group))
    if wanted.created_after is not None:
        asked.append(("created_at >= %s", wanted.created_after))
    if wanted.created_before is not None:
        asked.append(("created_at < %s", wanted.created_before))
    if wanted.only_queues is not None:
        asked.append(("queue = any (%s)", list(wanted.only_queues)))
    return " and ".join(text for text, _ in asked) or "true", tuple(value for _, value in asked)


def _page(rows: Rows, order: Order, page_jobs: int) -> Page:
    seen, jobs = _SEEN.many(rows), _JOB.many(rows, behind=_SEEN)
    found = [job for how, job in zip(seen, jobs, strict=True) if how.fits]
    shown = found[:page_jobs]
    # The window's last row comes last, and only after every match before it.
    ended = bool(seen) and seen[-1].position == WINDOW and len(found) <= page_jobs
    last = jobs[-1] if ended else shown[-1] if len(found) > page_jobs else None
    behind = None if last is None else _cursor_at(last, seen[jobs.index(last)], order)
    return Page(shown, behind, stopped_early=ended)


def _cursor_at(job: JobSummary, seen: _Seen, order: Order) -> Cursor:
    return tuple(seen.ready_at if column == "next_run_at" else getattr(job, column) for column in order.columns)
