"""Read schedules, and what was decided about their ticks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - FastAPI looks at the types of fields
from typing import TYPE_CHECKING
from uuid import UUID  # noqa: TC003 - likewise

from faultline.core.errors import JobRejected
from faultline.core.model import Json  # noqa: TC001 - likewise
from faultline.core.schedules import CATCH_UP_SECONDS, Rule
from faultline.store.rows import RowOf, as_shown_json
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

LISTED_MAX = 10_000
#: For people: see `ScheduleLine.state`.
STATES = ("active", "overdue", "failing", "orphaned", "paused", "ended")
#: A tick that waits longer is overdue: workers look once a second.
OVERDUE_SECONDS = 30.0
#: Workers are alive as `live_digest` has it, which only verbs may call. While there are none at all, code is not gone: its
#: schedules are overdue.
ORPHANED = (
    "s.digest is not null and (select bool_and(coalesce(s.digest <> all (w.schedules), true)) from faultline.workers w"
    " where w.heartbeat_at > faultline.clock() - interval '15 seconds') is true"
)
#: Another worker with the same code may have taken it over since.
DECLARED_OTHERWISE = (
    "(select count(*) from faultline.workers w where s.name = any (w.waiting_schedules)"
    " and coalesce(s.digest <> all (w.schedules), true) and w.heartbeat_at > faultline.clock() - interval '15 seconds')"
)


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """One schedule as lists show it."""

    name: str
    #: The rule: one of these three, `tz` with a cron line.
    cron: str | None
    tz: str | None
    every: float | None
    at: datetime | None
    task: str
    queue: str
    #: The job of each tick, without what a single tick adds: task, args, queue and so on.
    job: Json
    catch_up: str
    catch_up_seconds: float
    overlap: str
    jitter_seconds: float
    #: The argument that gets the moment of the tick.
    tick_arg: str | None
    #: Whether the code of workers declares it; otherwise it was made at run time.
    from_code: bool
    #: Somebody has chosen something else than the code says.
    overridden: bool
    #: It is of the code, and no living worker has that code: nobody decides about its ticks.
    orphaned: bool
    #: How many living workers have another declaration of it in their code. They wait until nobody has the one in force.
    declared_otherwise: int
    #: None: a worker has not computed it yet, or it has ended.
    next_at: datetime | None
    #: Without a next tick: those after this moment count.
    since: datetime
    last_at: datetime | None
    last_job: UUID | None
    ended_at: datetime | None
    paused_at: datetime | None
    #: How often in a row its ticks could not be decided about, since when, and why.
    failures: int
    failed_at: datetime | None
    last_error: str | None
    created_at: datetime
    #: Who last set, paused, resumed or declared it, and why.
    changed_at: datetime
    changed_by: str | None
    reason: str | None
    #: The database's time.
    clock: datetime

    @property
    def rule_text(self) -> str:
        """The rule for people."""
        if self.cron is not None:
            return f"{self.cron} ({self.tz or 'UTC'})"
        return f"every {self.every:g} s" if self.every is not None else f"at {self.at.isoformat() if self.at else '?'}"

    @property
    def other_code(self) -> str:
        """For people: how many living workers declare it otherwise than what is in force. Empty: none."""
        if not self.declared_otherwise:
            return ""
        who = (
            "1 living worker declares"
            if self.declared_otherwise == 1
            else f"{self.declared_otherwise:,} living workers declare"
        )
        return f"{who} it otherwise than what is in force"

    @property
    def shown_job(self) -> dict[str, Json]:
        """The job for people. What is stored for the argument that gets the moment of the tick is no moment of a tick."""
        job = self.job if isinstance(self.job, dict) else {}
        args = job.get("args")
        if self.tick_arg is None or not isinstance(args, dict):
            return job
        return job | {"args": args | {self.tick_arg: "the moment of the tick"}}

    @property
    def state(self) -> str:
        """For people: paused, ended, orphaned, failing, overdue or active."""
        if self.paused_at is not None:
            return "paused"
        if self.ended_at is not None:
            return "ended"
        if self.orphaned or self.failures:
            return "orphaned" if self.orphaned else "failing"
        late = self.next_at is not None and (self.clock - self.next_at).total_seconds() > OVERDUE_SECONDS
        return "overdue" if late else "active"

    def upcoming(self, count: int = 5) -> list[datetime]:
        """The next ticks. None of a schedule that is paused, orphaned or has ended, or whose rule cannot be computed here.

        :param count: How many.
        """
        if self.paused_at is not None or self.ended_at is not None or self.orphaned:
            return []
        try:
            rule = rule_of(self)
        except JobRejected:
            return []
        return rule.upcoming(self.next_at or rule.after(self.since), count)


@dataclass(frozen=True, slots=True)
class TickLine:
    """What was decided about a tick, or about a run of missed ticks."""

    at: datetime
    #: tick, missed (a run of ticks) or manual.
    kind: str
    #: fired, skipped, backfilled, missed or manual.
    outcome: str
    decided_at: datetime
    job_id: UUID | None
    #: missed: the last tick of the run, and how many there are.
    last_at: datetime | None
    ticks: int


def rule_of(line: ScheduleLine) -> Rule:
    """Raises `JobRejected` for one that this program cannot compute: its time zone may be newer than this system."""
    return Rule(line.cron, line.tz or None, line.every, line.at)


_LINE = RowOf(
    ScheduleLine,
    cron="s.spec ->> 'cron'",
    tz="s.spec ->> 'tz'",
    every="(s.spec ->> 'every')::float8",
    at="(s.spec ->> 'at')::timestamptz",
    task="s.spec -> 'job' ->> 'task'",
    queue="coalesce(s.spec -> 'job' ->> 'queue', 'default')",
    job=as_shown_json("(s.spec -> 'job')"),
    catch_up="coalesce(s.spec ->> 'catch_up', 'latest')",
    catch_up_seconds=f"coalesce((s.spec ->> 'catch_up_seconds')::float8, {CATCH_UP_SECONDS})",
    overlap="coalesce(s.spec ->> 'overlap', 'allow')",
    jitter_seconds="coalesce((s.spec ->> 'jitter_seconds')::float8, 0)",
    tick_arg="s.spec ->> 'tick_arg'",
    from_code="s.declared is not null",
    orphaned=ORPHANED,
    declared_otherwise=DECLARED_OTHERWISE,
    last_job="s.jobs[cardinality(s.jobs)]",
    clock="faultline.clock()",
)
_TICK = RowOf(TickLine, ticks="coalesce(t.ticks, 1)", at="t.at", last_at="t.last_at")


def schedules(*, only_queues: Sequence[str] | None = None) -> Statement[list[ScheduleLine]]:
    """All schedules by name; with `only_queues`, those whose jobs go there."""
    queues = None if only_queues is None else list(only_queues)
    return Statement(
        name="list_schedules",
        sql=f"select {_LINE.columns} from faultline.schedules s where %s::text[] is null"
        " or coalesce(s.spec -> 'job' ->> 'queue', 'default') = any (%s::text[])"
        f" order by s.name limit {LISTED_MAX}",
        params=(queues, queues),
        read=_LINE.many,
        repeatable=True,
        reads=True,
    )


def schedule(name: str, *, only_queues: Sequence[str] | None = None) -> Statement[ScheduleLine | None]:
    """One schedule; with `only_queues`, one whose jobs go elsewhere is not found."""
    queues = None if only_queues is None else list(only_queues)
    return Statement(
        name="schedule",
        sql=f"select {_LINE.columns} from faultline.schedules s where s.name = %s and (%s::text[] is null"
        " or coalesce(s.spec -> 'job' ->> 'queue', 'default') = any (%s::text[]))",
        params=(name, queues, queues),
        read=_LINE.first,
        repeatable=True,
        reads=True,
    )


def ticks(name: str, *, before: datetime | None = None, rows_max: int = 50) -> Statement[list[TickLine]]:
    """What was decided about the ticks of a schedule before this moment, newest first."""
    return Statement(
        name="list_ticks",
        sql=f"select {_TICK.columns} from faultline.ticks t"
        " where t.schedule_id = (select s.id from faultline.schedules s where s.name = %s)"
        " and t.at < coalesce(%s, 'infinity'::timestamptz) order by t.at desc, t.kind limit %s",
        params=(name, before, rows_max),
        read=_TICK.many,
        repeatable=True,
        reads=True,
    )
