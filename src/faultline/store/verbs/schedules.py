"""Schedules: declare, set, pause, run and backfill them, and decide about their ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

from faultline.store import jsontext
from faultline.store.rows import RowOf, as_json, value, values
from faultline.store.statement import Statement
from faultline.store.verbs.submit import jobs_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import Json, Submission
    from faultline.core.schedules import Plan, Policy, Rule
    from faultline.store.statement import Rows

T = TypeVar("T")


class Declared(NamedTuple):
    """What became of the declaration of a schedule: made, known, taken or waiting."""

    name: str
    outcome: str


class Declaration(NamedTuple):
    """What the code says about a schedule. `spec` is the text of its JSON."""

    name: str
    digest: str
    #: The name before, or those before, the last one first.
    was: str | Sequence[str] | None
    spec: str


class DueSchedule(NamedTuple):
    """A schedule with ticks to decide about, and the database's time to compute with."""

    name: str
    revision: int
    next_at: datetime | None
    since: datetime
    spec: Json
    clock: datetime


class Signed(TypedDict, total=False):
    """Who does something to a schedule, why, and which they may: those whose jobs go to these queues, or all."""

    by: str | None
    reason: str | None
    only_queues: Sequence[str] | None


class Decision(NamedTuple):
    """What is to become of the due ticks of a schedule."""

    due: DueSchedule
    plan: Plan


class Ticked(NamedTuple):
    """What became of a tick: fired with its job, or skipped. With an error: of no tick of this schedule."""

    name: str
    at: datetime | None
    outcome: str | None
    job_id: UUID | None
    error: str | None


_DECLARED = RowOf(Declared)
_CHANGED = {"made", "taken"}
_DUE = RowOf(DueSchedule, spec=as_json("spec"))
_TICKED = RowOf(Ticked)
#: How many schedules one statement decides about: see tick_many.sql.
DECIDED_AT_ONCE = 50
#: How many one statement declares.
DECLARED_AT_ONCE = 200
#: Many schedules, each with a job: more than an ordinary statement may take.
_DECLARE_SECONDS = 30.0


def spec_text(rule: Rule, job: Submission, policy: Policy) -> str:
    """The spec of a schedule as JSON. The arguments of the job keep their text."""
    given = rule.fields() | policy.fields()
    return f'{jsontext.encode(given, "schedule")[:-1]},"job":{jobs_text([job])[1:-1]}}}'


def declare_schedules(worker_id: str, declarations: Sequence[Declaration]) -> Statement[list[Declared]]:
    """Write what the code of this worker says. Returns what became of each."""
    return _declaring(worker_id, declarations, _DECLARED.many)


def _declaring(worker_id: str, declarations: Sequence[Declaration], read: Callable[[Rows], T]) -> Statement[T]:
    texts = [
        f'{jsontext.encode({"name": one.name, "digest": one.digest, "was": one.was}, one.name)[:-1]},"spec":{one.spec}}}'
        for one in declarations
    ]
    return Statement(
        name="declare_schedules",
        sql=f"select {_DECLARED.columns} from faultline.declare_schedules(%s, %s::json)",
        params=(worker_id, f"[{','.join(texts)}]"),
        read=read,
        repeatable=True,
        seconds=_DECLARE_SECONDS,
    )


def declaring_schedules(declarations: Sequence[Declaration]) -> list[Statement[int]]:
    """Write what the code of a program says that is no worker. Each returns how many schedules it has made or changed."""

    def changed(rows: Rows) -> int:
        return sum(one.outcome in _CHANGED for one in _DECLARED.many(rows))

    starts = range(0, len(declarations), DECLARED_AT_ONCE)
    return [_declaring("app.declare()", declarations[start : start + DECLARED_AT_ONCE], changed) for start in starts]


def stale_schedules(names: Sequence[str], digests: Sequence[str]) -> Statement[list[str]]:
    """The declarations that are not in force and could be."""
    return Statement(
        name="stale_schedules",
        sql="select * from faultline.stale_schedules(%s::text[], %s::text[])",
        params=(list(names), list(digests)),
        read=values,
        repeatable=True,
        reads=True,
    )


def due_schedules(
    digests: Sequence[str], max_schedules: int = 100, *, but_not: Iterable[str] = ()
) -> Statement[list[DueSchedule]]:
    """The schedules that a worker with these declarations should decide about now."""
    return Statement(
        name="due_schedules",
        sql=f"select {_DUE.columns} from faultline.due_schedules(%s::text[], %s, %s::text[])",
        params=(list(digests), max_schedules, list(but_not)),
        read=_DUE.many,
        repeatable=True,
        reads=True,
        often=True,
    )


def tick_many(decisions: Sequence[Decision]) -> Statement[list[Ticked]]:
    """Decide about the due ticks of these schedules, unless another has done so. Returns what became of those that fire, and
    of schedules that could not be decided about.
    """
    return Statement(
        name="tick_many",
        sql=f"select {_TICKED.columns} from faultline.tick_many(%s::json)",
        params=(jsontext.encode([_decided(one) for one in decisions], "ticks"),),
        read=_TICKED.many,
        # Sent again after a lost answer, it finds other positions.
        repeatable=True,
    )


def _decided(one: Decision) -> dict[str, Any]:
    due, plan = one
    return {
        "name": due.name,
        "revision": due.revision,
        "expected": due.next_at and due.next_at.isoformat(),
        "fire": [at.isoformat() for at in plan.fire],
        "missed": [{"from": run.first.isoformat(), "to": run.last.isoformat(), "ticks": run.ticks} for run in plan.missed],
        "next_at": plan.next_at and plan.next_at.isoformat(),
    }


def schedule_failed(due: DueSchedule, error: str) -> Statement[bool]:
    """Record that ticks of this schedule cannot be decided about. It is looked at again later. Returns whether it was so."""
    sql = "select faultline.schedule_failed(%s, %s, %s)"
    return Statement("schedule_failed", sql, (due.name, due.revision, error), value, repeatable=True)


def set_schedule(name: str, spec: str | None, **signed: Unpack[Signed]) -> Statement[bool]:
    """Make or change a schedule; with None, back to what the code says. Returns whether this changed anything."""
    sql = "select faultline.set_schedule(%s, %s::json, %s, %s, %s::text[])"
    return Statement("set_schedule", sql, (name, spec, *_signed(signed)), value, repeatable=True)


def remove_schedule(name: str, **signed: Unpack[Signed]) -> Statement[bool]:
    """Remove a schedule. Returns whether there was one."""
    sql = "select faultline.remove_schedule(%s, %s, %s, %s::text[])"
    return Statement("remove_schedule", sql, (name, *_signed(signed)), value, repeatable=True)


def pause_schedule(name: str, **signed: Unpack[Signed]) -> Statement[datetime]:
    """Pause a schedule. Returns since when it is paused."""
    sql = "select faultline.pause_schedule(%s, %s, %s, %s::text[])"
    return Statement("pause_schedule", sql, (name, *_signed(signed)), value, repeatable=True)


def resume_schedule(name: str, next_at: datetime | None = None, **signed: Unpack[Signed]) -> Statement[bool]:
    """Resume a schedule from now, or from this tick on. Returns whether it was paused."""
    sql = "select faultline.resume_schedule(%s, %s, %s, %s, %s::text[])"
    return Statement("resume_schedule", sql, (name, next_at, *_signed(signed)), value, repeatable=True)


def run_schedule(name: str, **signed: Unpack[Signed]) -> Statement[UUID]:
    """Enqueue the job of a schedule now. Returns its id."""
    sql = "select faultline.run_schedule(%s, %s, %s, %s::text[])"
    return Statement("run_schedule", sql, (name, *_signed(signed)), value)


def backfill(name: str, ticks: Sequence[datetime], **signed: Unpack[Signed]) -> Statement[int]:
    """Enqueue jobs for ticks of the past that have none. Returns how many."""
    return Statement(
        name="backfill",
        sql="select faultline.backfill(%s, %s::timestamptz[], %s, %s, %s::text[])",
        params=(name, list(ticks), *_signed(signed)),
        read=value,
        # What is on record is left out. A second call returns how many it enqueued itself, which is none.
        repeatable=True,
        seconds=_DECLARE_SECONDS,
    )


def _signed(signed: Signed) -> tuple[Any, ...]:
    queues = signed.get("only_queues")
    return signed.get("by"), signed.get("reason"), None if queues is None else list(queues)
