"""Read what waits: the calls that suspended jobs wait for, a page at a time, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - FastAPI looks at the types of fields
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID  # noqa: TC003 - likewise

from faultline.core.journal import JournalEvent
from faultline.store.rows import RowOf
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.store.statement import Rows

#: A page reads no more calls than this, however few of them match. The next one begins behind them.
WINDOW = 10_000
_ARGS_LENGTH = 160
#: What a job can wait for.
KINDS = ("signal", "sleep", "children", "watch", "after", "retry")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that a suspended job waits for."""

    call_id: int
    job_id: UUID
    task: str
    queue: str
    number: str
    kind: str
    name: str
    #: When the program first came to it.
    since: datetime
    #: When it is over at the latest.
    until: datetime | None
    #: The job's root.
    flow_id: UUID | None
    idempotency_key: str | None
    #: The beginning of the job's arguments, as text.
    args: str


#: The values of a row by which the list of what waits is ordered.
Cursor = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WaitingPage:
    waiting: list[Waiting]
    #: Where the next page begins; None when there is none.
    behind: Cursor | None


@dataclass(frozen=True, slots=True)
class FlowTotals:
    """All flows together, as last counted."""

    #: How many calls are waited for, by kind.
    waiting: dict[str, int]
    #: Since the oldest note that a job should be looked at. Workers look within about a second.
    oldest_nudge_seconds: float
    #: Ended jobs whose open children are not all cancelled yet.
    sweeps_left: int


class _Read(NamedTuple):
    """Which of the calls that a page reads it is, and whether it was asked for."""

    position: int
    fits: bool


_TOTALS = RowOf(FlowTotals)
_READ = RowOf(_Read, position="c.position", fits="fits.it")
_WAITING = RowOf(
    Waiting,
    call_id="c.id",
    job_id="c.job_id",
    task="j.task",
    queue="j.queue",
    number="c.number",
    kind="c.kind",
    name="c.name",
    since="c.begun_at",
    until="c.until",
    flow_id="j.flow_id",
    idempotency_key="j.idempotency_key",
    args=f"left(j.args::text, {_ARGS_LENGTH})",
)


def waiting(
    *,
    kind: str | None = None,
    name: str | None = None,
    only_queues: Sequence[str] | None = None,
    page_rows: int = 50,
    behind: Cursor | None = None,
) -> Statement[WaitingPage]:
    """What suspended jobs wait for, longest first; signals by their names. A name means signals of that name."""
    kind = "signal" if name is not None else kind
    queues = None if only_queues is None else list(only_queues)
    order = order_of(kind)
    asked: list[tuple[str, tuple[Any, ...]]] = [("c.awaited", ())]
    if kind == "signal":
        # A literal: the planner uses a partial index only if it sees the condition in the query.
        asked.append(("c.kind = 'signal'", ()))
    if name is not None:
        asked.append(("c.name = %s", (name,)))
    if behind is not None:
        values = ", ".join(f"%s::{type_}" for type_ in order.types)
        asked.append((f"({', '.join(order.columns)}) > ({values})", tuple(behind)))
    fits = "c.ended_at is null and (%s::text is null or c.kind = %s) and (%s::text[] is null or j.queue = any (%s::text[]))"
    by = ", ".join(order.columns)
    return Statement(
        name="list_waiting",
        # The last row that is read says where the next page begins, also if nobody waits there.
        sql=f"select {_WAITING.columns}, {_READ.columns}"
        f" from (select *, row_number() over (order by {by}) as position"
        f" from (select * from faultline.calls c where {' and '.join(text for text, _ in asked)}"
        f" order by {by} limit {WINDOW}) c) c"
        " left join faultline.open_jobs j on j.id = c.job_id and j.state = 'queued' and j.suspended"
        f" cross join lateral (select j.id is not null and {fits} as it) fits"
        f" where fits.it or c.position = {WINDOW} order by {by} limit %s",
        params=(*(param for _, given in asked for param in given), kind, kind, queues, queues, page_rows + 1),
        read=lambda rows: _page(rows, order, page_rows),
        repeatable=True,
        reads=True,
    )


@dataclass(frozen=True, slots=True)
class Order:
    """How a list is ordered, which is also the kind of its cursors."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    fields: tuple[str, ...]


#: As the indexes have them: see `calls_signals` and `calls_awaited`.
BY_SIGNAL = Order(
    "signal", ("c.name", "c.begun_at", "c.id"), ("text", "timestamptz", "bigint"), ("name", "since", "call_id")
)
BY_JOB = Order("job", ("c.job_id", "c.id"), ("uuid", "bigint"), ("job_id", "call_id"))


def order_of(kind: str | None) -> Order:
    return BY_SIGNAL if kind == "signal" else BY_JOB


def _page(rows: Rows, order: Order, page_rows: int) -> WaitingPage:
    calls = _WAITING.many(rows[:page_rows])
    read = _READ.many(rows[:page_rows], behind=_WAITING)
    shown = [call for call, one in zip(calls, read, strict=True) if one.fits]
    is_last = len(rows) <= page_rows and not any(one.position == WINDOW for one in read)
    return WaitingPage(shown, None if is_last else tuple(getattr(calls[-1], name) for name in order.fields))


def awaited(job_ids: Sequence[UUID]) -> Statement[list[Waiting]]:
    """What these jobs wait for, as far as they are suspended."""
    return Statement(
        name="awaited",
        sql=f"select {_WAITING.columns} from faultline.calls c join faultline.open_jobs j on j.id = c.job_id and j.suspended"
        " where c.job_id = any (%s) and c.awaited and c.ended_at is null order by c.id limit 1000",
        params=(list(job_ids),),
        read=_WAITING.many,
        repeatable=True,
        reads=True,
    )


def totals() -> Statement[FlowTotals]:
    """Reads every call that is waited for: not to be asked too often."""
    return Statement(
        name="flow_totals",
        sql="""
select
  coalesce((
    select json_object_agg(w.kind, w.calls)
    from (
      select c.kind, count(*) as calls
      from faultline.calls c
      join faultline.open_jobs j on j.id = c.job_id and j.suspended
      where c.awaited and c.ended_at is null
      group by c.kind
    ) w
  ), '{}'),
  coalesce((
    select greatest(0, extract(epoch from faultline.clock() - n.at)) from faultline.nudges n order by n.id limit 1
  ), 0)::float8,
  (select count(*) from faultline.sweeps)
""",
        params=(),
        read=_TOTALS.one,
        repeatable=True,
        reads=True,
        seconds=30.0,
    )


class Some(NamedTuple):
    """How many jobs, and one of them."""

    jobs: int
    example: UUID | None


_SOME = RowOf(Some)


def for_nothing() -> Statement[Some]:
    """Suspended jobs that wait for no call: only their time limit ends that. Reads 100,000 queued jobs at the most."""
    return Statement(
        name="waiting_for_nothing",
        sql="""
select count(*) as jobs, min(w.id::text)::uuid as example
from (select j.id, j.suspended from faultline.jobs j where j.state = 'queued' limit 100000) w
where w.suspended
  and not exists (
    select from faultline.calls c where c.job_id = w.id and c.awaited and c.ended_at is null
  )
""",
        params=(),
        read=_SOME.one,
        repeatable=True,
        reads=True,
    )


def changed_programs(days: int = 7) -> Statement[Some]:
    """Open jobs whose code did not fit their history, and that have not gone on since."""
    return Statement(
        name="changed_programs",
        sql=f"""
select count(distinct e.job_id) as jobs, min(e.job_id::text)::uuid as example
from faultline.journal e
join faultline.open_jobs j on j.id = e.job_id and j.state in ('queued', 'running')
where e.event = '{JournalEvent.PROGRAM_CHANGED}'
  and e.at > faultline.clock() - make_interval(days => %s)
  and not exists (
    select from faultline.calls c where c.job_id = e.job_id and greatest(c.begun_at, c.ended_at) > e.at
  )
""",
        params=(days,),
        read=_SOME.one,
        repeatable=True,
        reads=True,
    )
