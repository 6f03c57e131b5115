"""Scenes of schedules: whoever decides a moment, it is decided once, and makes one job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from psycopg.errors import LockNotAvailable

from faultline_proof.explorer.flows import steps as flow_steps
from faultline_proof.explorer.limits import programs as does
from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.limits.judge import held_of
from faultline_proof.explorer.scenarios import Scenario
from faultline_proof.explorer.steps import BEGIN, COMMIT, LEASES_RUN_OUT, ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.explorer.programs import Program, Scene, Script
    from faultline_proof.explorer.scenarios import Ask
    from faultline_proof.explorer.steps import Step

#: One moment of it comes while the leases run out, and none while the judge waits.
_EVERY = timedelta(seconds=50)
_ROUNDS, _MOMENTS = 10, 2
_RUNNING = "select id, fencing_token, lease_owner, task from faultline.open_jobs where queue = %s and state = 'running'"
_OPEN = "select id from faultline.open_jobs where queue = %s and state in ('queued', 'running')"
_DECIDED = (
    "select t.outcome from faultline.ticks t where t.schedule_id ="
    " (select s.id from faultline.schedules s where s.name = %s) order by t.at"
)


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


def _ticks(end: Any = None, foreseen: tuple[type[Exception], ...] = ()) -> Script:
    """As a worker does: look what is due, compute, decide."""

    def program(scene: Scene) -> Program:
        for name, revision, next_at, _ in (yield steps.due_schedules()):
            if name != _name(scene):
                continue
            if end is not None:
                yield BEGIN
            step = steps.tick(name, revision, next_at, [next_at], next_at + _EVERY)
            yield replace(step, foreseen=foreseen)
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


# One runs, one waits

#: The job that a moment would wait for may be locked: then the moment is decided later.
_LOCKED = (LockNotAvailable,)


def _one_runs(scene: Scene) -> Program:
    """The job of its first moment runs, and the second moment has come."""
    yield steps.set_schedule(_name(scene), _spec(scene, overlap="one"))
    ((name, revision, next_at, since),) = yield steps.due_schedules()
    yield steps.tick(name, revision, next_at, [], since + _EVERY)
    yield LEASES_RUN_OUT
    yield steps.tick(name, revision, since + _EVERY, [since + _EVERY], since + 2 * _EVERY)
    scene.notes["held"] = yield steps.claim(scene.queue)
    yield LEASES_RUN_OUT


def _holder(make: Callable[..., Step]) -> Script:
    return does.within(lambda scene: make(*scene.notes["held"]))


def _works(scene: Scene) -> Program:
    yield flow_steps.resolve()
    yield steps.claim(scene.queue)


def _never_two(scene: Scene, ask: Ask) -> list[str]:
    """Never two run at once, both moments made their jobs, and these come to their end."""
    for _ in range(_ROUNDS):
        running = ask(_RUNNING, scene.queue)
        if len(running) > 1:
            return [f"{len(running)} jobs of one schedule run at once"]
        if len(ask(_DECIDED, _name(scene))) < _MOMENTS:
            for name, revision, next_at, _ in _ask(ask, steps.due_schedules()):
                if name == _name(scene):
                    _ask(ask, steps.tick(name, revision, next_at, [next_at], next_at + _EVERY))
        if running:
            _ask(ask, steps.complete(*map(held_of, running)))
        _ask(ask, flow_steps.resolve())
        _ask(ask, steps.claim(scene.queue))
        if not ask(_OPEN, scene.queue):
            break
    else:
        return ["a job of it waits for ever"]
    ticks = [outcome for (outcome,) in ask(_DECIDED, _name(scene))]
    return [] if ticks == ["fired"] * _MOMENTS else [f"of {_MOMENTS} moments, with room for both, came {ticks}"]


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
    *(
        Scenario(
            f"tick-one-{what}",
            f"two workers decide a moment while the job before is {told}",
            _one_runs,
            {"A": _ticks(COMMIT, _LOCKED), "B": _ticks(foreseen=_LOCKED), "holder": _holder(make), "worker": _works},
            judge=_never_two,
        )
        for what, told, make in (
            ("complete", "completed", steps.complete),
            ("fail", "to be tried again", steps.fail),
            ("release", "given back", steps.release),
        )
    ),
    Scenario(
        "tick-one-reap",
        "a worker decides a moment while the job before is taken back, and dies of it",
        _one_runs,
        {
            "A": _ticks(COMMIT, _LOCKED),
            "dies": _ticks(ROLLBACK, _LOCKED),
            "reaper": does.within(lambda _: steps.reap()),
            "worker": _works,
        },
        judge=_never_two,
    ),
]
