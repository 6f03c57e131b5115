"""The state of queues and workers, for people and metrics. Nothing here counts jobs, so it is as fast in a full database.

Everything comes from the counts of workers (`tallies`, one row a minute) and from regular counts of jobs (`samples`). The
queues are found by jumping from one to the next in the key of those tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from faultline.core import histogram
from faultline.core.measures import COUNTS, Counted
from faultline.store.rows import Column, RowOf, value
from faultline.store.statement import Statement

#: `dead_workers` suspects a worker without a heartbeat for so long.
SILENT_SECONDS = 3.0
#: A worker without a heartbeat for so long whose session is open is frozen or cut off.
HUNG_SECONDS = 30.0
#: Counts older than this are shown as old.
OLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue. Counts are as of `sampled_at`; if that is null, the queue was not counted yet and the zeros mean nothing.
    `estimated` names the counts that are estimates, because there were too many jobs to count. `paused_by` is the API key or
    user, and the database login. Rates and times cover the last five minutes.
    """

    name: str
    due: int
    delayed: int
    running: int
    failed: int
    oldest_due_at: datetime | None
    #: How long the oldest due job has waited, by the database's clock.
    oldest_due_seconds: float | None
    sampled_at: datetime | None
    paused_at: datetime | None
    paused_reason: str | None
    #: Who paused it, with the login.
    paused_by: str | None
    started_per_second: float
    succeeded_per_second: float
    failed_per_second: float
    rescheduled_per_second: float
    wait_seconds_p50: float | None
    wait_seconds_p95: float | None
    run_seconds_p50: float | None
    run_seconds_p95: float | None
    #: Growth of `due` over the last ten minutes (negative: draining). None: not known yet.
    growth_per_second: float | None
    #: How long until nothing is due, at this rate. None: never, or not known.
    drain_seconds: float | None
    #: Which of the four counts are estimates.
    estimated: list[str]
    #: The age of the counts, by the database's clock. None: not counted.
    counted_seconds_ago: float | None

    @property
    def counts_are_old(self) -> bool:
        return self.counted_seconds_ago is None or self.counted_seconds_ago > OLD_SECONDS


_UNKNOWN = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Minute(Counted):
    """One minute of a trend. `due` is None where nothing was counted."""

    minute: datetime = _UNKNOWN
    due: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker process, as of its last heartbeat."""

    id: str
    host: str
    pid: int
    version: str
    #: Its last heartbeat is recent.
    alive: bool
    queues: list[str]
    sleeping: list[str]
    started_at: datetime
    heartbeat_at: datetime
    #: Since the last heartbeat, by the database's clock.
    age_seconds: float
    leases: int
    #: How far its clock is ahead of the database's. For people only.
    clock_ahead_seconds: float | None
    #: How many connections it may open at once, with those that its jobs borrow. None: not announced yet.
    connections_max: int | None


@dataclass(frozen=True, slots=True)
class WorkerLine(WorkerState):
    """A worker with the tasks it knows."""

    #: None: not announced yet.
    tasks: list[str] | None = None


@dataclass(slots=True)
class Total(Counted):
    """The counts of a queue since its beginning."""

    queue: str = ""


def _quantile(counts: str, share: float) -> Column:
    """The time below which this share of a histogram lies."""
    return Column(counts, lambda found: histogram.quantile(found or (), share))


#: By the database's clock.
_AGE = "greatest(extract(epoch from faultline.clock() - heartbeat_at)::float8, 0)"
_WORKER = RowOf(WorkerLine, alive=f"age_seconds < {SILENT_SECONDS}")
_QUEUE = RowOf(
    QueueLine,
    name="k.name",
    due="coalesce(s.due, 0)",
    delayed="coalesce(s.delayed, 0)",
    running="coalesce(s.running, 0)",
    failed="coalesce(s.failed, 0)",
    oldest_due_at="s.oldest_due_at",
    oldest_due_seconds="extract(epoch from faultline.now() - s.oldest_due_at)::float8",
    sampled_at="l.sampled_at",
    paused_at="q.paused_at",
    paused_reason="q.paused_reason",
    paused_by="q.paused_by",
    started_per_second="coalesce(c.started, 0) / since.seconds",
    succeeded_per_second="coalesce(c.succeeded, 0) / since.seconds",
    failed_per_second="coalesce(c.failed, 0) / since.seconds",
    rescheduled_per_second="coalesce(c.rescheduled, 0) / since.seconds",
    wait_seconds_p50=_quantile("h.waits", 0.5),
    wait_seconds_p95=_quantile("h.waits", 0.95),
    run_seconds_p50=_quantile("h.runs", 0.5),
    run_seconds_p95=_quantile("h.runs", 0.95),
    growth_per_second="g.per_second",
    drain_seconds="case when coalesce(s.due, 0) = 0 then 0 when g.per_second < 0 then s.due / -g.per_second end",
    estimated="coalesce(s.estimated, '{}')",
    # Not `greatest` alone: it ignores null, so a queue that was never counted would look counted just now.
    counted_seconds_ago="case when l.sampled_at is not null"
    " then greatest(extract(epoch from faultline.now() - l.sampled_at)::float8, 0) end",
)
_MINUTE = RowOf(
    Minute,
    minute="m.minute",
    due="w.due::bigint",
    **{name: f"coalesce(c.{name}, 0)::bigint" for name in COUNTS},
)
_TOTAL = RowOf(Total, **{name: f"sum({name})::bigint" for name in COUNTS})
_COUNTED = RowOf(Counted, **{name: f"coalesce(sum(t.{name}), 0)::bigint" for name in COUNTS})


def queues() -> Statement[list[QueueLine]]:
    """Every queue that has jobs, finished some within a day, or is paused."""
    return Statement(name="overview", sql=_QUEUES, params=(), read=_QUEUE.many, repeatable=True, reads=True)


def trend(minutes: int = 60, queue: str | None = None) -> Statement[list[Minute]]:
    """The last minutes, oldest first, without gaps; of all queues, or of one."""
    return Statement(
        name="trend",
        sql=_TREND,
        params=(minutes - 1, queue),
        read=_MINUTE.many,
        repeatable=True,
        reads=True,
    )


def workers() -> Statement[list[WorkerLine]]:
    return Statement(
        name="worker_lines",
        sql=f"select {_WORKER.columns} from (select *, {_AGE} as age_seconds from faultline.workers) w"
        " order by host, pid, id",
        params=(),
        read=_WORKER.many,
        repeatable=True,
        reads=True,
    )


def connected_and_silent() -> Statement[int]:
    """How many workers are hung: no heartbeat for long, though the session that holds their lock is open."""
    return Statement(
        name="hung_workers",
        # The key of `faultline.worker_lock`, which a viewer may not call.
        sql="select count(*) from faultline.workers w"
        f" where w.heartbeat_at < faultline.clock() - interval '{HUNG_SECONDS} seconds' and exists ("
        "select from pg_locks l where l.locktype = 'advisory' and l.objsubid = 1 and l.granted"
        " and l.database = (select d.oid from pg_database d where d.datname = current_database())"
        " and (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('faultline worker ' || w.id, 0))",
        params=(),
        read=value,
        repeatable=True,
        reads=True,
    )


def counted_seconds_ago() -> Statement[float | None]:
    """How long ago all queues were last counted. None: never."""
    return Statement(
        name="counted",
        sql="select greatest(extract(epoch from faultline.now() - sampled_at)::float8, 0) from faultline.sampling"
        " where sampled_at > '-infinity'",
        params=(),
        read=lambda rows: value(rows) if rows else None,
        repeatable=True,
        reads=True,
    )


def totals() -> Statement[list[Total]]:
    """The counts of each queue since its beginning."""
    return Statement(
        name="totals",
        sql=f"select {_TOTAL.columns} from faultline.tallies group by queue order by queue",
        params=(),
        read=_TOTAL.many,
        repeatable=True,
        reads=True,
    )


def counted(minutes: int = 60) -> Statement[Counted]:
    """The counts of the last minutes, of all queues together."""
    return Statement(
        name="counted_lately",
        sql=f"with recursive {_NAMES} select {_COUNTED.columns} from tallied n join faultline.tallies t on t.queue = n.name"
        " and t.minute > faultline.now() - make_interval(mins => %s)",
        params=(minutes,),
        read=_COUNTED.one,
        repeatable=True,
        reads=True,
    )


#: The queues in a table whose key begins with the queue, with one index lookup for each.
_NAMES = ", ".join(
    f"""{found} (name) as (
  (select queue from faultline.{table} order by queue limit 1)
  union all
  select (select t.queue from faultline.{table} t where t.queue > f.name order by t.queue limit 1)
  from {found} f
  where f.name is not null
)"""
    for found, table in (("tallied", "tallies"), ("sampled", "samples"))
)

_QUEUES = f"""
with recursive {_NAMES},
known as (
  select f.name from tallied f
  where exists (
    select from faultline.tallies t where t.queue = f.name and t.minute > faultline.now() - interval '1 day'
  )
  union
  select f.name from sampled f
  where exists (
    select from faultline.samples s where s.queue = f.name and s.minute > faultline.now() - interval '1 day'
  )
  union
  select q.name from faultline.queues q where q.paused_at is not null
),
since (minute, seconds) as (
  select m.at, extract(epoch from faultline.now() - m.at)::float8
  from (select date_trunc('minute', faultline.now()) - interval '4 minutes') as m (at)
)
select {_QUEUE.columns}
from known k
cross join since
left join faultline.queues q on q.name = k.name
left join lateral (
  select * from faultline.samples x where x.queue = k.name order by x.minute desc limit 1
) s on true
-- A queue without a row in the last count was empty. Without any sample of it, that is known for one day only: older samples
-- are rolled up.
left join lateral (
  select greatest(s.sampled_at, nullif(x.sampled_at, '-infinity')) as sampled_at
  from (select max(g.sampled_at) as sampled_at from faultline.sampling g) x
  where s.queue is not null or x.sampled_at > faultline.now() - interval '1 day'
) l on true
left join lateral (
  select sum(t.started)::float8 as started, sum(t.succeeded)::float8 as succeeded, sum(t.failed)::float8 as failed,
    sum(t.rescheduled)::float8 as rescheduled
  from faultline.tallies t
  where t.queue = k.name and t.minute >= since.minute
) c on true
left join lateral (
  select array_agg(x.waits order by x.position) as waits, array_agg(x.runs order by x.position) as runs
  from (
    select u.position, coalesce(sum(u.waits), 0)::bigint as waits, coalesce(sum(u.runs), 0)::bigint as runs
    from faultline.tallies t cross join unnest(t.waits, t.runs) with ordinality as u (waits, runs, position)
    where t.queue = k.name and t.minute >= since.minute
    group by u.position
  ) x
) h on true
left join lateral (
  select regr_slope(x.due, extract(epoch from x.sampled_at)::float8) as per_second
  from faultline.samples x
  where x.queue = k.name and x.minute > faultline.now() - interval '10 minutes'
) g on true
order by k.name
"""

_TREND = f"""
with recursive {_NAMES},
asked (minutes, queue) as (select %s::integer, %s::text),
minutes (minute) as (
  select date_trunc('minute', faultline.now()) - make_interval(mins => back)
  from asked a cross join generate_series(a.minutes, 0, -1) as back
),
counted as (
  select t.minute, {", ".join(f"sum(t.{name}) as {name}" for name in COUNTS)}
  from asked a
  join tallied n on a.queue is null or n.name = a.queue
  join faultline.tallies t on t.queue = n.name and t.minute >= (select min(m.minute) from minutes m)
  group by t.minute
),
waiting as (
  select s.minute, sum(s.due) as due
  from asked a
  join sampled n on a.queue is null or n.name = a.queue
  join faultline.samples s on s.queue = n.name and s.minute >= (select min(m.minute) from minutes m)
  group by s.minute
)
select {_MINUTE.columns}
from minutes m
left join counted c on c.minute = m.minute
left join waiting w on w.minute = m.minute
order by m.minute
"""
