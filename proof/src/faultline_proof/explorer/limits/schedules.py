"""Scenes of schedules: whoever decides a moment, it is decided once, and makes one job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.scenarios import Scenario
from faultline_proof.explorer.steps import BEGIN, COMMIT, LEASES_RUN_OUT, ROLLBACK

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene, Script
    from faultline_proof.explorer.scenarios import Ask

#: One moment of it comes while the leases run out, and none while the judge waits.
_EVERY = timedelta(seconds=50)


def _spec(scene: Scene, **more: Any) -> dict[str, Any]:
    return {"every": _EVERY.total_seconds(), "job": {"task": "report", "queue": scene.queue}, **more}


def _name(scene: Scene) -> str:
    return f"schedule-{scene.number}"


def _due(scene: Scene) -> Program:
    """It is there, has its place, and one of its moments has come."""
    yield steps.set_schedule(_name(scene), _spec(scene))
    ((name, revision, next_at, since),) = yield steps.due_schedules()
    yield steps.tick(name, revision, next_at, [], since + _EVERY)
    scene.notes["at"] = since + _EVERY
    scene.notes["decided"] = 0
    yield LEASES_RUN_OUT


def _ticks(end: Any = None) -> Script:
    """As a worker does: look what is due, compute, decide."""

    def program(scene: Scene) -> Program:
        for name, revision, next_at, _ in (yield steps.due_schedules()):
            if name != _name(scene):
                continue
            if end is not None:
                yield BEGIN
            yield steps.tick(name, revision, next_at, [next_at], next_at + _EVERY)
            if end is not None:
                yield end

    return program


def _pauses(scene: Scene) -> Program:
    yield BEGIN
    yield steps.pause_schedule(_name(scene))
    yield COMMIT
    scene.notes["paused"] = True


def _changes(scene: Scene) -> Program:
    """Another job, the same rule: its place is kept."""
    yield BEGIN
    yield steps.set_schedule(_name(scene), _spec(scene, overlap="skip"))
    yield COMMIT


def _once(scene: Scene, ask: Ask) -> list[str]:
    """One tick, one job; if nobody has decided it, whoever looks next does so."""
    if not scene.notes.get("paused"):
        for name, revision, next_at, _ in _ask(ask, steps.due_schedules()):
            if name == _name(scene):
                _ask(ask, steps.tick(name, revision, next_at, [next_at], next_at + _EVERY))
    ticks = ask(
        "select t.at, t.outcome, t.job_id is not null from faultline.ticks t"
        " join faultline.schedules s on s.id = t.schedule_id where s.name = %s and t.kind = 'tick'",
        _name(scene),
    )
    jobs = ask("select id from faultline.open_jobs where queue = %s", scene.queue)
    right: tuple[Any, ...] = ([(scene.notes["at"], "fired", True)], 1)
    fine = (ticks, len(jobs)) == right or (scene.notes.get("paused") and (ticks, len(jobs)) == ([], 0))
    return [] if fine else [f"of one moment {scene.notes['at']} came the ticks {ticks} and {len(jobs)} jobs"]


def _ask(ask: Ask, step: Any) -> list[Any]:
    found: list[Any] = step.statement.read(ask(step.statement.sql, *step.statement.params))
    return found


SCENES = [
    Scenario(
        "tick-tick",
        "two workers decide one moment, and a third one dies of it",
        _due,
        {"A": _ticks(COMMIT), "B": _ticks(), "dies": _ticks(ROLLBACK)},
        judge=_once,
    ),
    Scenario(
        "tick-pause",
        "two workers decide a moment of a schedule that is being paused",
        _due,
        {"A": _ticks(COMMIT), "B": _ticks(), "operator": _pauses},
        judge=_once,
    ),
    Scenario(
        "tick-change",
        "two workers decide a moment of a schedule that gets another job",
        _due,
        {"A": _ticks(COMMIT), "B": _ticks(), "operator": _changes},
        judge=_once,
    ),
]
