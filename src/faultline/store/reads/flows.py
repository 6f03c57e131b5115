"""Read flows: a job with its calls, children, waits and signals.

However large a flow is, a read is bounded: a call with many children shows each as one letter, and only the jobs of small
groups are read themselves. With `only_queues`, jobs of other queues are not shown, only counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime  # noqa: TC003 - FastAPI looks at the types of fields
from typing import TYPE_CHECKING
from uuid import UUID  # noqa: TC003 - likewise

from faultline.core.journal import JournalEvent, quoted
from faultline.core.model import JobState, Json
from faultline.store.rows import Column, RowOf, as_shown_json
from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.model import JobRecord

#: The children of a larger group are shown as a strip, a cell each.
SHOWN_CHILDREN_MAX = 50
JOBS_MAX = 500
CALLS_MAX = 2000
SIGNALS_MAX = 200
DEPTH_MAX = 20
#: Of a value that is stored: the whole may have megabytes.
VALUE_LENGTH_MAX = 4000
_ERROR_LENGTH_MAX = 2000
_LISTED_ERROR_LENGTH = 200
_FAILED_SHOWN = 10
_GRAPH = "faultline.flow"
#: What may have been last known of a queued job that does not go on.
_TRIES = (
    JournalEvent.PROGRAM_CHANGED, *(event for event in JournalEvent if event.kind.ends is not None),
)  # fmt: skip

#: What stands for the state of a child in the cells of its group.
LETTERS = {
    "q": "queued",
    "w": "waiting",
    "r": "running",
    "s": "succeeded",
    "f": "failed",
    "c": "cancelled",
    "x": "elsewhere",
    "-": "forgotten",
}


@dataclass(frozen=True, slots=True)
class FlowJob:
    """A job of a flow, and which call of its parent it belongs to."""

    id: UUID
    task: str
    queue: str
    state: JobState
    #: It holds no lease: it waits for a call to be over.
    suspended: bool
    attempt: int
    max_attempts: int
    fencing_token: int
    created_at: datetime
    next_run_at: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    last_error: str | None
    #: The call of its parent; None: the tree begins here.
    call_id: int | None
    index: int | None
    depth: int
    #: Why a queued job does not go on, if its code did not fit its history.
    program_changed: str | None = None
    #: What it is called in a graph; the root: the name of that.
    name: str | None = None

    @property
    def shown_state(self) -> str:
        return "waiting" if self.suspended else str(self.state)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a program: a step, a wait or children. Once it has ended it is history."""

    id: int
    job_id: UUID
    number: str
    kind: str
    name: str
    #: Of its arguments.
    digest: str | None
    fencing_token: int
    begun_at: datetime
    #: The job is suspended until this is over.
    awaited: bool
    until: datetime | None
    policy: str | None
    total: int | None
    spawned: int
    tries: int
    ended_at: datetime | None
    outcome: str | None
    #: Cut, as text, if it is long.
    result: Json
    error: str | None


@dataclass(frozen=True, slots=True)
class Children:
    """The jobs that a call waits for."""

    call_id: int
    jobs: int
    queued: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    #: Jobs of queues that the caller may not see.
    elsewhere: int
    #: Pruned, each by its own age.
    forgotten: int
    #: The state of each in the order of its index, as a letter: see `LETTERS`.
    cells: str
    #: The first that have failed.
    failed_ids: list[UUID]
    #: Of these, in the same order.
    failed_indexes: list[int] = field(default_factory=list)
    failed_errors: list[str | None] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[int, UUID, str | None]]:
        """The first that have failed: index, job and error."""
        return list(zip(self.failed_indexes, self.failed_ids, self.failed_errors, strict=True))

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.forgotten


@dataclass(frozen=True, slots=True)
class Signal:
    id: int
    job_id: UUID
    name: str
    payload: Json
    key: str | None
    #: Only the call with this number may receive it.
    for_call: str | None
    sent_at: datetime
    sent_by: str | None
    #: The number of the call that received it.
    received_by: str | None
    received_at: datetime | None


@dataclass(frozen=True, slots=True)
class Parent:
    """A call of another job that waits for this one, or has."""

    job_id: UUID
    task: str
    queue: str
    number: str
    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Flow:
    """A job and all that hangs from it, as far as it is shown."""

    #: The job at which this tree begins.
    job_id: UUID
    #: The root of its flow; None: it is in no flow.
    flow_id: UUID | None
    jobs: list[FlowJob]
    calls: list[Call]
    children: list[Children]
    signals: list[Signal]
    parents: list[Parent]
    #: There are more jobs or calls than are shown.
    is_cut: bool = field(default=False)


_STATE = Column("j.state", JobState)
_CHANGED = f"""
case when j.state = 'queued' and not coalesce(j.suspended, false) then (
  select case e.event when '{JournalEvent.PROGRAM_CHANGED}' then left(e.detail ->> 'error', {_ERROR_LENGTH_MAX}) end
  from faultline.journal e
  where e.job_id = j.id and e.event in ({quoted(*_TRIES)})
  order by e.id desc
  limit 1
) end
"""
_JOB = RowOf(
    FlowJob,
    ("name",),
    id="j.id",
    task="j.task",
    queue="j.queue",
    state=_STATE,
    suspended="coalesce(j.suspended, false)",
    attempt="j.attempt",
    max_attempts="j.max_attempts",
    fencing_token="j.fencing_token",  # noqa: S106 - a column, no secret
    created_at="j.created_at",
    next_run_at="coalesce(j.group_at, j.next_run_at)",
    claimed_at="j.claimed_at",
    finished_at="j.finished_at",
    last_error=f"left(j.last_error, {_ERROR_LENGTH_MAX})",
    call_id="t.call_id",
    index="t.index",
    depth="t.depth",
    program_changed=_CHANGED,
)
_CALL = RowOf(
    Call, result=as_shown_json(f"left(result::text, {VALUE_LENGTH_MAX})"), error=f"left(error, {VALUE_LENGTH_MAX})"
)
_CHILDREN = RowOf(
    Children,
    jobs="count(*)::integer",
    **{name: f"count(*) filter (where letter = '{letter}')::integer" for letter, name in LETTERS.items()},
    cells="string_agg(letter, '' order by index)",
    **{
        field: f"coalesce((array_agg({column} order by index) filter (where letter = 'f'))[1:{_FAILED_SHOWN}], '{{}}')"
        for field, column in (("failed_ids", "job_id"), ("failed_indexes", "index"), ("failed_errors", "error"))
    },
)
_SIGNAL = RowOf(Signal, payload=as_shown_json(f"left(payload::text, {VALUE_LENGTH_MAX})"))
_PARENT = RowOf(Parent, job_id="c.job_id", task="j.task", queue="j.queue", number="c.number", kind="c.kind", index="e.index")
_TREE = f"""
with recursive tree (job_id, call_id, index, depth) as (
  select %s::uuid, null::bigint, null::integer, 0
  union all
  select e.job_id, e.call_id, e.index, t.depth + 1
  from tree t
  join faultline.calls c
    on c.job_id = t.job_id and c.kind in ('children', 'detached')
    and greatest(c.total, c.spawned) <= {SHOWN_CHILDREN_MAX}
  join faultline.edges e on e.call_id = c.id
  where t.depth < {DEPTH_MAX}
)
select {_JOB.columns}
from (select * from tree limit {JOBS_MAX + 1}) t
join faultline.jobs j on j.id = t.job_id
where %s::text[] is null or j.queue = any (%s::text[])
order by t.depth, t.call_id, t.index
"""

_CHILDREN_OF = f"""
select {_CHILDREN.columns}
from (
  select
    e.call_id, e.index, e.job_id, left(o.last_error, {_LISTED_ERROR_LENGTH}) as error,
    case
      when coalesce(o.queue, l.queue) is null then '-'
      when %s::text[] is not null and coalesce(o.queue, l.queue) <> all (%s::text[]) then 'x'
      when l.job_id is not null then 's'
      when o.suspended then 'w'
      else left(o.state, 1)
    end as letter
  from faultline.calls c
  join faultline.edges e on e.call_id = c.id
  left join faultline.open_jobs o on o.id = e.job_id
  left join faultline.ledger l on l.job_id = e.job_id
  where c.job_id = any (%s::uuid[])
) child
group by call_id
order by call_id
"""


def tree(job_id: UUID, *, only_queues: Sequence[str] | None = None) -> Statement[tuple[list[FlowJob], bool]]:
    """The job and its descendants, level by level, and whether there are more."""
    queues = None if only_queues is None else list(only_queues)

    def read(rows: Rows) -> tuple[list[FlowJob], bool]:
        found = _JOB.many(rows)
        return found[:JOBS_MAX], len(found) > JOBS_MAX

    return Statement("flow_tree", _TREE, (job_id, queues, queues), read, repeatable=True, reads=True)


def flow_names(job: JobRecord) -> tuple[str | None, list[str]]:
    """Of the root of a graph: what it is called, and what its jobs are called, in their order."""
    if job.task != _GRAPH or not isinstance(job.args, dict):
        return None, []
    name, names = job.args.get("flow"), job.args.get("names")
    return name if isinstance(name, str) else None, [str(one) for one in names] if isinstance(names, list) else []


def named(root: JobRecord, jobs: Sequence[FlowJob]) -> list[FlowJob]:
    """With the names that a graph gave its jobs."""
    flow, names = flow_names(root)

    def name_of(job: FlowJob) -> str | None:
        if job.depth == 0:
            return flow
        known = job.depth == 1 and job.index is not None and job.index < len(names)
        return names[job.index] if known and job.index is not None else None

    return [replace(job, name=name_of(job)) for job in jobs] if flow or names else list(jobs)


def calls(job_ids: Sequence[UUID]) -> Statement[tuple[list[Call], bool]]:
    """The calls of these jobs in their order, the last ones of many, and whether there are more."""

    def read(rows: Rows) -> tuple[list[Call], bool]:
        found = _CALL.many(rows)
        return sorted(found[:CALLS_MAX], key=lambda call: (call.job_id, numbers(call.number))), len(found) > CALLS_MAX

    return Statement(
        name="calls",
        sql=f"select {_CALL.columns} from faultline.calls where job_id = any (%s) order by id desc limit {CALLS_MAX + 1}",
        params=(list(job_ids),),
        read=read,
        repeatable=True,
        reads=True,
    )


def numbers(number: str) -> tuple[int, ...]:
    """By which calls are ordered: '3.10' comes after '3.9'."""
    return tuple(int(part) for part in number.split("."))


def children(job_ids: Sequence[UUID], *, only_queues: Sequence[str] | None = None) -> Statement[list[Children]]:
    """The jobs that the calls of these jobs wait for, counted by state."""
    queues = None if only_queues is None else list(only_queues)
    params = (queues, queues, list(job_ids))
    return Statement("children", _CHILDREN_OF, params, _CHILDREN.many, repeatable=True, reads=True)


def signals(job_ids: Sequence[UUID]) -> Statement[list[Signal]]:
    """The last signals that were sent to these jobs, in order."""
    return Statement(
        name="signals",
        sql=f"select {_SIGNAL.columns} from faultline.signals where job_id = any (%s) order by id desc limit {SIGNALS_MAX}",
        params=(list(job_ids),),
        read=lambda rows: _SIGNAL.many(rows[::-1]),
        repeatable=True,
        reads=True,
    )


def parents(job_id: UUID, *, only_queues: Sequence[str] | None = None) -> Statement[list[Parent]]:
    """The calls of other jobs that this one is a child of, or that watch it."""
    queues = None if only_queues is None else list(only_queues)
    return Statement(
        name="parents",
        sql=f"select {_PARENT.columns} from faultline.edges e join faultline.calls c on c.id = e.call_id"
        " join faultline.jobs j on j.id = c.job_id"
        " where e.job_id = %s and (%s::text[] is null or j.queue = any (%s::text[])) order by c.id limit 20",
        params=(job_id, queues, queues),
        read=_PARENT.many,
        repeatable=True,
        reads=True,
    )


def below(
    job_id: UUID, jobs: Sequence[FlowJob], *, only_queues: Sequence[str] | None = None
) -> tuple[Statement[tuple[list[Call], bool]], Statement[list[Children]], Statement[list[Signal]], Statement[list[Parent]]]:
    """What is read after the tree of a job."""
    ids = [job.id for job in jobs]
    return (
        calls(ids),
        children(ids, only_queues=only_queues),
        signals(ids),
        parents(job_id, only_queues=only_queues),
    )
