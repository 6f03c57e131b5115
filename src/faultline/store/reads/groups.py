"""What limits do now: permits and tokens of queues, and the groups of one by how long they wait, a page at a time.

Nothing here counts a million rows. Counts stop at a bound and say so; the groups are found by jumping from one to the next
in the index of waiting jobs, a window at a time. Permits are counted on the rows of the jobs that hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from faultline.core.model import Json  # noqa: TC001 - FastAPI looks at the types of fields
from faultline.store.rows import Column, RowOf, as_json
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.store.statement import Rows

#: A page compares no more groups than this. The next one begins behind them.
WINDOW = 5_000
#: A count of waiting jobs stops here.
JOBS_MAX = 1_000
#: The same for all groups of a queue together, and for how many of these wait.
QUEUE_JOBS_MAX, QUEUE_GROUPS_MAX = 10_000, 1_000
#: Running jobs that are looked at for permits.
_RUNNING_MAX = 100_000
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QueueUse:
    """A queue with limits: what it may do, and what it does now."""

    queue: str
    paused: bool
    #: What holds for the queue as a whole: `concurrency`, `rate`, `per`, `burst`. Empty: only its groups are limited.
    limit: dict[str, Json]
    #: Permits that running jobs hold.
    holding: int
    #: Jobs that may start now by the rate. None: there is no rate.
    tokens: float | None
    #: Jobs of groups that wait, and groups in which jobs wait. `at_least`: there are more of these, and not counted.
    waiting: int
    groups_waiting: int
    at_least: bool
    #: Due jobs without a group, up to 10,000. Limits of groups do not hold for them.
    ungrouped: int
    #: What holds for each of its groups.
    each_group: dict[str, Json]
    #: What happened to its groups since a claim or upkeep last applied them.
    unheard_events: int
    #: Since when all of them were last applied, which workers do every minute. None: not yet, or nobody counts seconds.
    events_applied_seconds_ago: float | None

    @property
    def full(self) -> bool:
        """No permit of the queue is left."""
        cap = self.limit.get("concurrency")
        return isinstance(cap, int | float) and self.holding >= cap

    @property
    def passes_groups(self) -> bool:
        """Jobs wait here that are under no limit of a group, though each group has one."""
        return self.ungrouped > 0 and not self.each_group.keys().isdisjoint({"concurrency", "rate", "ordered"})


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group of a queue, with what it may do and what it does."""

    group: str
    #: Permits that its running jobs hold, and jobs of strict order that wait for their next attempt.
    holding: int
    #: Jobs that wait in it, up to 1,000; `at_least`: there are more.
    waiting: int
    at_least: bool
    #: Since when its first job waits. None: none waits.
    oldest_at: datetime | None
    oldest_seconds: float | None
    #: Its place among the groups that may start something: the lowest is served first. None: it has no place.
    virtual_time: float | None
    #: It may start a job as soon as there is a slot.
    ready: bool
    #: When it gets its next permit by its rate, if it waits for that.
    next_permit_at: datetime | None
    #: What holds for it, with what it has from each group (`*`).
    limit: dict[str, Json]
    #: Jobs of it that may start now by its rate. None: it has none.
    tokens: float | None


#: The first group of the window, and the wait and the group of the row behind which a page begins.
Cursor = tuple[Any, ...]
CURSOR_TYPES = ("text", "timestamptz", "text")


@dataclass(frozen=True, slots=True)
class GroupPage:
    groups: list[GroupLine]
    #: Where the next page begins; None when there is none.
    behind: Cursor | None
    #: Only a window of groups was compared: among those behind it, one may wait for longer.
    more_groups: bool


@dataclass(frozen=True, slots=True)
class Permit:
    """How a job stands to the limits of its queue and of its group."""

    limited: bool
    #: It holds a permit: of its queue, of its group. A job of a strict order keeps it between its attempts.
    of_queue: bool
    of_group: bool
    queue_limit: dict[str, Json]
    queue_holding: int
    queue_tokens: float | None
    group_limit: dict[str, Json]
    group_holding: int
    #: One of the jobs that hold a permit of the group.
    group_holder: UUID | None
    group_tokens: float | None
    #: When the group gets its next permit by its rate.
    next_permit_at: datetime | None
    #: By budget, what it waits for: `cost`, and when it asks again at the latest, `to`.
    waits: dict[str, Json]
    paused_at: datetime | None = None
    paused_reason: str | None = None
    paused_by: str | None = None


def _fields(column: str) -> Column:
    """A limit. What is null in it is no limit."""
    plain = as_json(f"jsonb_strip_nulls({column})")
    return Column(plain.sql, lambda text: plain.read(text) or {})


def _tokens(bucket: str, limit: str) -> str:
    """What is in a bucket now; one that was never used is full. As `refilled` (SQL), which a viewer may not call."""
    burst, rate = f"({limit} ->> 'burst')::float8", f"({limit} ->> 'rate')::float8 / ({limit} ->> 'per')::float8"
    passed = f"greatest(0, extract(epoch from faultline.clock() - {bucket}.refilled_at))::float8"
    return (
        f"case when {limit} ->> 'rate' is not null"
        f" then least({burst}, coalesce({bucket}.tokens + {rate} * {passed}, {burst})) end"
    )


_USE = RowOf(
    QueueUse,
    queue="q.name",
    paused="q.paused_at is not null",
    limit=_fields("o.fields"),
    holding="coalesce(h.jobs, 0)::integer",
    tokens="t.tokens",
    waiting="least(w.jobs + d.arriving, (select a.jobs_max from asked a))::integer",
    groups_waiting="least(g.groups, (select a.groups_max from asked a))::integer",
    at_least="w.jobs + d.arriving > (select a.jobs_max from asked a) or g.groups > (select a.groups_max from asked a)",
    ungrouped="d.ungrouped::integer",
    each_group=_fields("o.group_fields"),
    unheard_events="e.events::integer",
    events_applied_seconds_ago="t.events_applied_seconds_ago",
)

_EFFECTIVE = (
    "coalesce((select l.effective from faultline.limits l where l.queue = {queue} and l.group_key = {group}), '{{}}')"
)


def _effective(queue: str, group: str) -> str:
    return _EFFECTIVE.format(queue=queue, group=group)


#: The queue that was asked for.
_ASKED = "(select a.queue from asked a)"

#: The groups of a queue in which jobs wait, one index lookup for each.
_JUMPS = """
  (
    select j.group_key from faultline.open_jobs j
    where j.in_group and j.queue = {queue} and j.group_key > {start} order by j.group_key limit 1
  )
  union all
  select (
    select j.group_key from faultline.open_jobs j
    where j.in_group and j.queue = {queue} and j.group_key > k.group_key order by j.group_key limit 1
  )
  from {name} k
  where k.group_key is not null
"""

#: Due jobs of a queue that stand outside of groups: those of groups, which the next claims let in, and those without one.
#: One index lookup for each priority: the jobs in groups, which stand beside them in the index, are not read.
_DUE = """
  with recursive levels (priority) as (
    (select j.priority from faultline.open_jobs j where j.state = 'queued' and j.queue = q.name order by j.priority limit 1)
    union all
    select (
      select j.priority from faultline.open_jobs j
      where j.state = 'queued' and j.queue = q.name and j.priority > l.priority order by j.priority limit 1
    )
    from levels l
    where l.priority is not null
  )
  select
    count(*) filter (where d.group_key is not null) as arriving,
    count(*) filter (where d.group_key is null) as ungrouped
  from (
    select d.group_key
    from levels l
    cross join lateral (
      select j.group_key from faultline.open_jobs j
      where j.state = 'queued' and j.queue = q.name and j.priority = l.priority and j.next_run_at <= faultline.clock()
      order by j.next_run_at
      limit (select a.jobs_max from asked a) + 1
    ) d
    where l.priority is not null
    limit (select a.jobs_max from asked a) + 1
  ) d
"""

#: Permits are marks on rows. A job that does not run holds that of its group alone.
_HELD = """
select j.id, j.queue, j.group_key, true as runs
from faultline.open_jobs j
where j.state = 'running' and j.lease_expires_at <= 'infinity' and j.has_permit
union all
select j.id, j.queue, j.group_key, false
from faultline.open_jobs j
where j.state = 'queued' and j.group_key is not null and j.in_group is null and j.has_permit
"""


def in_use(queue: str | None = None, *, jobs_max: int = QUEUE_JOBS_MAX) -> Statement[list[QueueUse]]:
    """The queues with limits, by name; or one, if it has any."""
    return Statement(
        name="limits_in_use",
        sql=f"""
with asked (queue, jobs_max, groups_max) as materialized (select %s::text, %s::bigint, %s::bigint),
held as materialized (
  select h.queue, count(*) filter (where h.runs) as jobs
  from (select * from ({_HELD}) h where h.queue in (select q.name from faultline.queues q where q.limited)
    limit {_RUNNING_MAX}) h
  group by h.queue
)
select {_USE.columns}
from faultline.queues q
cross join lateral (select {_effective("q.name", "''")} as fields, {_effective("q.name", "'*'")} as group_fields) o
left join held h on h.queue = q.name
cross join lateral (
  select {_tokens("l", "o.fields")}::float8 as tokens,
    extract(epoch from faultline.clock() - nullif(l.all_events_applied_at, '-infinity'))::float8
      as events_applied_seconds_ago
  from faultline.limited_queues l
  where l.queue = q.name
) t
cross join lateral (
  select count(*) as jobs
  from (select from faultline.open_jobs j where j.in_group and j.queue = q.name limit (select a.jobs_max from asked a) + 1) j
) w
cross join lateral ({_DUE}) d
cross join lateral (
  with recursive known (group_key) as ({_JUMPS.format(queue="q.name", start="''", name="known")})
  select count(*) as groups
  from (select from known k where k.group_key is not null limit (select a.groups_max from asked a) + 1) k
) g
cross join lateral (
  select count(*) as events
  from (select from faultline.group_events e where e.queue = q.name limit {QUEUE_JOBS_MAX}) e
) e
where q.limited and ((select a.queue from asked a) is null or q.name = (select a.queue from asked a))
order by q.name
""",
        params=(queue, jobs_max, QUEUE_GROUPS_MAX),
        read=_USE.many,
        repeatable=True,
        reads=True,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    #: By what the page is ordered.
    wait_at: datetime
    #: The window's last group, and whether there are others behind it.
    last: str | None
    cut: bool


_GROUP = RowOf(
    GroupLine,
    group="p.group_key",
    holding="coalesce(p.holding, 0)::integer",
    waiting=f"least(w.jobs, {JOBS_MAX})::integer",
    at_least=f"w.jobs > {JOBS_MAX}",
    oldest_at="p.at",
    oldest_seconds="extract(epoch from faultline.clock() - p.at)::float8",
    virtual_time="case when g.ready then g.virtual_time end",
    ready="coalesce(g.ready, false)",
    next_permit_at="case when g.not_before > faultline.clock() then g.not_before end",
    limit=_fields("o.fields"),
    tokens=_tokens("g", "o.fields"),
)
_SEEN = RowOf(_Seen, wait_at="p.wait_at", last="p.last", cut="p.cut")


_GROUPS = f"""
with recursive asked (queue, start, wait_at, group_key, rows) as materialized (
  select %s::text, %s::text, %s::timestamptz, %s::text, %s::bigint
),
known (group_key) as ({_JUMPS.format(queue=_ASKED, start="(select a.start from asked a)", name="known")}),
listed as materialized (
  select k.group_key from known k where k.group_key is not null limit {WINDOW} + 1
),
bound as materialized (
  select
    count(*) > {WINDOW} as cut,
    (select l.group_key from listed l order by l.group_key offset {WINDOW} - 1 limit 1) as last
  from listed l
),
held as materialized (
  select h.group_key, count(*) as holding
  from (
    select h.group_key from ({_HELD}) h where h.queue = {_ASKED} and h.group_key is not null limit {_RUNNING_MAX}
  ) h
  group by h.group_key
),
found as (
  select l.group_key from listed l cross join bound b where not b.cut or l.group_key <= b.last
  union
  select h.group_key from held h cross join bound b
  where h.group_key > (select a.start from asked a) and (not b.cut or h.group_key <= b.last)
),
page as materialized (
  select f.group_key, h.holding, a.at, coalesce(a.at, '9999-01-01Z') as wait_at, b.last, b.cut
  from found f
  cross join bound b
  left join held h on h.group_key = f.group_key
  left join lateral (
    select j.group_at as at from faultline.open_jobs j
    where j.in_group and j.queue = {_ASKED} and j.group_key = f.group_key
    order by j.priority, j.group_at, j.id limit 1
  ) a on true
  where (coalesce(a.at, '9999-01-01Z'), f.group_key) > ((select a.wait_at from asked a), (select a.group_key from asked a))
  order by coalesce(a.at, '9999-01-01Z'), f.group_key
  limit (select a.rows from asked a)
)
select {_GROUP.columns}, {_SEEN.columns}
from page p
cross join lateral (
  select {_effective(_ASKED, "'*'")} || {_effective(_ASKED, "p.group_key")} as fields
) o
left join lateral (
  select g.* from faultline.groups g
  where g.group_key = p.group_key and g.queue = {_ASKED}
  order by g.changed_second desc limit 1
) g on true
cross join lateral (
  select count(*) as jobs
  from (
    select from faultline.open_jobs j
    where j.in_group and j.queue = {_ASKED} and j.group_key = p.group_key limit {JOBS_MAX} + 1
  ) j
) w
order by p.wait_at, p.group_key
"""


def groups(queue: str, *, page_rows: int = 50, behind: Cursor | None = None) -> Statement[GroupPage]:
    """The groups of a queue that wait or hold permits, those that wait longest first, then those that only hold."""
    start, wait_at, group = behind or ("", _FIRST, "")
    return Statement(
        name="list_groups",
        sql=_GROUPS,
        params=(queue, start, wait_at, group, page_rows + 1),
        read=lambda rows: _page(rows, start, page_rows),
        repeatable=True,
        reads=True,
    )


def _page(rows: Rows, start: str, page_rows: int) -> GroupPage:
    lines, seen = _GROUP.many(rows[:page_rows]), _SEEN.many(rows[:page_rows], behind=_GROUP)
    cut = bool(seen) and seen[-1].cut
    behind: Cursor | None = None
    if len(rows) > page_rows:
        behind = (start, seen[-1].wait_at, lines[-1].group)
    elif cut:
        behind = (seen[-1].last, _FIRST, "")
    return GroupPage(lines, behind, more_groups=cut)


_PERMIT = RowOf(
    Permit,
    limited="coalesce(q.limited, false)",
    of_queue="coalesce(j.has_permit and j.state = 'running', false)",
    of_group="coalesce(j.has_permit and j.group_key is not null, false)",
    queue_limit=_fields("o.fields"),
    queue_holding="coalesce(h.of_queue, 0)::integer",
    queue_tokens="t.tokens",
    group_limit=_fields("o.group_fields"),
    group_holding="coalesce(h.of_group, 0)::integer",
    group_holder="h.holder",
    group_tokens=_tokens("g", "o.group_fields"),
    next_permit_at="case when g.not_before > faultline.clock() then g.not_before end",
    waits=_fields("j.takes -> 'waits'"),
    paused_reason="q.paused_reason",
)


def permit(job_id: UUID) -> Statement[Permit | None]:
    """How an open job stands to the limits of its queue; None if it is not open."""
    return Statement(
        name="permit",
        sql=f"""
select {_PERMIT.columns}
from faultline.open_jobs j
left join faultline.queues q on q.name = j.queue
cross join lateral (
  select
    {_effective("j.queue", "''")} as fields,
    {_effective("j.queue", "'*'")} || {_effective("j.queue", "j.group_key")} as group_fields
) o
left join lateral (
  select {_tokens("l", "o.fields")}::float8 as tokens from faultline.limited_queues l where l.queue = j.queue
) t on true
left join lateral (
  select g.* from faultline.groups g where g.group_key = j.group_key and g.queue = j.queue
    order by g.changed_second desc limit 1
) g on true
left join lateral (
  select
    count(*) filter (where h.runs) as of_queue,
    count(*) filter (where h.group_key = j.group_key) as of_group,
    (array_agg(h.id) filter (where h.group_key = j.group_key))[1] as holder
  from (select h.* from ({_HELD}) h where h.queue = j.queue limit {_RUNNING_MAX}) h
) h on q.limited
where j.id = %s
""",
        params=(job_id,),
        read=_PERMIT.first,
        repeatable=True,
        reads=True,
    )
