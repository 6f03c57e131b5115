"""What became of the ticks of schedules: one by one, counted by hour or day for the strips of a page, and in total."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - FastAPI looks at the types of fields
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID  # noqa: TC003 - likewise

from faultline.core.states import JobState
from faultline.store.reads.schedules import ORPHANED, OVERDUE_SECONDS
from faultline.store.rows import Column, RowOf
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from faultline.store.statement import Rows

#: A strip reads no more ticks of a schedule than this, the newest. Each costs a look at its job.
TICKS_MAX = 1000


class _Counted(NamedTuple):
    name: str
    fate: str
    #: The cells from the first to the last; they differ for a run of missed ticks only.
    first: int
    last: int
    ticks: int
    #: More ticks than are read.
    is_cut: bool


@dataclass(slots=True)
class Strip:
    """Of one schedule: what became of its ticks, by cell. A number of 0 stands for an unknown one."""

    cells: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    #: Cells before this one were not read: there are too many ticks.
    read_from: int = 0

    def add(self, cell: int, fate: str, ticks: int) -> None:
        known = self.cells[cell].get(fate)
        self.cells[cell][fate] = ticks if known is None else known + ticks


_COUNTED = RowOf(
    _Counted,
    name="s.name",
    fate="k.fate",
    first="k.first",
    last="k.last",
    ticks="sum(k.ticks)::bigint",
    is_cut="bool_or(k.is_cut)",
)


#: `most`: how many ticks of each are read.
_STRIPS = f"""
select {_COUNTED.columns}
from faultline.schedules s
cross join lateral (
  select
    case
      when t.kind = 'missed' then 'missed'
      when t.outcome = 'skipped' then 'skipped'
      when j.state in ('failed', 'cancelled') then j.state::text
      when j.state in ('queued', 'running') then 'running'
      -- Of a job that was pruned nothing else is known.
      else 'done'
    end as fate,
    floor(extract(epoch from t.at - w.first) / w.seconds)::integer as first,
    floor(extract(epoch from coalesce(t.last_at, t.at) - w.first) / w.seconds)::integer as last,
    coalesce(t.ticks, 1) as ticks,
    t.number = {{most}} as is_cut
  from (select %s::timestamptz as first, %s::float8 as seconds, %s::timestamptz as until) w
  cross join lateral (
    select n.*, row_number() over (order by n.at desc) as number
    from (
      select * from faultline.ticks k
      where k.schedule_id = s.id and k.at >= w.first and k.at < w.until
      order by k.at desc
      limit {{most}}
    ) n
    union all
    -- A run of missed ticks that began before the first cell may reach into it.
    select r.*, 0 from (
      select * from faultline.ticks k where k.schedule_id = s.id and k.at < w.first order by k.at desc limit 1
    ) r
    where r.last_at >= w.first
  ) t
  left join faultline.jobs j on j.id = t.job_id
) k
where s.name = any (%s)
group by s.name, k.fate, k.first, k.last
"""


def strips(names: Sequence[str], *, first: datetime, length: timedelta, cells: int) -> Statement[dict[str, Strip]]:
    """The strips of these schedules, each of so many cells of this length. Reads at most `TICKS_MAX` ticks of each."""

    def read(rows: Rows) -> dict[str, Strip]:
        found = {name: Strip() for name in names}
        for one in _COUNTED.many(rows):
            strip = found[one.name]
            shown = range(max(one.first, 0), min(one.last, cells - 1) + 1)
            for cell in shown:
                strip.add(cell, one.fate, one.ticks if one.first == one.last else 0)
            if one.is_cut:
                strip.read_from = max(strip.read_from, one.first)
        return found

    return Statement(
        name="strips",
        sql=_STRIPS.format(most=TICKS_MAX),
        params=(first, length.total_seconds(), first + cells * length, list(names)),
        read=read,
        repeatable=True,
        reads=True,
    )


@dataclass(frozen=True, slots=True)
class TickState:
    """What was decided about a tick, or about a run of missed ticks, and what became of its job."""

    at: datetime
    #: tick, missed (a run of ticks) or manual.
    kind: str
    #: fired, skipped, backfilled, missed or manual.
    outcome: str
    decided_at: datetime
    job_id: UUID | None
    #: None: it has none, or it was pruned.
    job_state: JobState | None
    #: missed: the last tick of the run.
    last_at: datetime | None
    #: missed: how many ticks the run has.
    ticks: int


@dataclass(frozen=True, slots=True)
class TickPage:
    ticks: list[TickState]
    #: Where the next page begins; None when there is none.
    before: datetime | None


_TICK = RowOf(
    TickState,
    at="t.at",
    kind="t.kind",
    outcome="t.outcome",
    decided_at="t.decided_at",
    job_id="t.job_id",
    job_state=Column("j.state", lambda state: None if state is None else JobState(state)),
    last_at="t.last_at",
    ticks="coalesce(t.ticks, 1)",
)


def ticks(name: str, *, before: datetime | None = None, page_rows: int = 50) -> Statement[TickPage]:
    """What was decided about the ticks of a schedule before this moment, newest first.

    Two entries of one moment (a tick, and a run by hand in the same microsecond) are on one page.
    """

    def read(rows: Rows) -> TickPage:
        found = _TICK.many(rows)
        shown = found[:page_rows]
        if len(found) > page_rows:
            whole = [one for one in shown if one.at != found[page_rows].at]
            shown = whole or shown
        return TickPage(shown, shown[-1].at if len(found) > page_rows else None)

    return Statement(
        name="ticks_with_jobs",
        sql=f"select {_TICK.columns} from faultline.ticks t left join faultline.jobs j on j.id = t.job_id"
        " where t.schedule_id = (select s.id from faultline.schedules s where s.name = %s)"
        " and t.at < coalesce(%s, 'infinity'::timestamptz) order by t.at desc, t.kind limit %s",
        params=(name, before, page_rows + 1),
        read=read,
        repeatable=True,
        reads=True,
    )


@dataclass(frozen=True, slots=True)
class ScheduleTotals:
    """All schedules together."""

    #: How many there are, by state.
    states: dict[str, int]
    #: How long the tick that waits longest has been due. Of schedules that some worker should decide about.
    oldest_overdue_seconds: float
    #: Decisions that failed in a row, of all schedules.
    failures: int


_TOTALS = RowOf(ScheduleTotals)


def totals() -> Statement[ScheduleTotals]:
    """The states as `ScheduleLine.state` has them."""
    return Statement(
        name="schedule_totals",
        sql=f"""
with seen as (
  select
    s.failures,
    case when s.paused_at is null and s.ended_at is null then
      greatest(0, extract(epoch from faultline.clock() - s.next_at))
    end as overdue_seconds,
    case
      when s.paused_at is not null then 'paused'
      when s.ended_at is not null then 'ended'
      when {ORPHANED} then 'orphaned'
      when s.failures > 0 then 'failing'
      when s.next_at < faultline.clock() - make_interval(secs => {OVERDUE_SECONDS}) then 'overdue'
      else 'active'
    end as state
  from faultline.schedules s
)
select
  coalesce((select json_object_agg(g.state, g.schedules) from (
    select state, count(*) as schedules from seen group by state
  ) g), '{{}}'),
  coalesce(max(overdue_seconds) filter (where state <> 'orphaned'), 0)::float8,
  coalesce(sum(failures) filter (where state = 'failing'), 0)::bigint
from seen
""",
        params=(),
        read=_TOTALS.one,
        repeatable=True,
        reads=True,
    )
