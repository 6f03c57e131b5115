"""Scenes of budgets: what was taken and what is left are together what was there, and nobody waits for what is there.

The budget of a scene fills so slowly that nothing comes in while it lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.limits.judge import drained
from faultline_proof.explorer.scenarios import Scenario
from faultline_proof.explorer.steps import BEGIN, COMMIT, LEASES_RUN_OUT, ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.explorer.flows.steps import Held
    from faultline_proof.explorer.programs import Program, Scene, Script
    from faultline_proof.explorer.scenarios import Ask
    from faultline_proof.explorer.steps import Step

_BURST = 10
_SLOW: dict[str, Any] = {"rate": 1, "per": 31536000, "burst": _BURST}
_FAST: dict[str, Any] = {"rate": 1000, "per": 1, "burst": _BURST}
#: More than comes in during a scene, with all its jumps of time.
_A_LITTLE = 0.01
_INSIDE = ("take_budget",)


# Set-ups


def _full(scene: Scene) -> Program:
    """Three jobs run, and nobody has taken anything."""
    names = ["job-0", "job-1", "job-2"]
    yield steps.set_budget(scene.queue, _SLOW)
    placed = yield steps.submit(scene.queue, *names)
    scene.jobs = {name: row[0] for name, row in zip(names, placed, strict=True)}
    held = yield steps.claim(scene.queue)
    scene.notes |= {"held": sorted(held, key=lambda one: str(one.task)), "taken": {}}


def _empty(scene: Scene) -> Program:
    """The last of them has taken everything."""
    yield from _full(scene)
    yield from _take(scene, scene.notes["held"][2], _BURST)


# Programs


def _take(scene: Scene, lease: Held, cost: float, end: Step | None = None) -> Program:
    if end is not None:
        yield BEGIN
    status, _ = yield steps.take_budget(lease, scene.queue, cost)
    if end is not None:
        yield end
    if status == "taken" and end is not ROLLBACK:
        scene.notes["taken"][lease.job_id, lease.token] = cost


def _takes(number: int, cost: float, end: Step | None = None) -> Script:
    """For one of the jobs that the set-up runs."""
    return lambda scene: _take(scene, scene.notes["held"][number], cost, end)


def _takes_or_waits(waits: Callable[[Held, float], Step]) -> Script:
    """As a worker does: the lease goes back if there is too little, for as long as it was told."""

    def program(scene: Scene) -> Program:
        lease = scene.notes["held"][0]
        status, seconds = yield steps.take_budget(lease, scene.queue, _BURST / 2)
        if status == "wait":
            yield waits(lease, seconds)

    return program


def _sets(fields: dict[str, Any], end: Step = COMMIT) -> Script:
    def program(scene: Scene) -> Program:
        yield BEGIN
        yield steps.set_budget(scene.queue, fields)
        yield end

    return program


def _takes_late(cost: float) -> Script:
    """Takes when its lease may have been taken back: then nothing is taken."""

    def program(scene: Scene) -> Program:
        lease = scene.notes["held"][0]
        yield steps.expire()
        is_late = scene.notes.get("reaped", False)
        yield from _take(scene, lease, cost)
        if is_late and (lease.job_id, lease.token) in scene.notes["taken"]:
            scene.notes["stale"] = str(lease)

    return program


def _reaps(scene: Scene) -> Program:
    yield LEASES_RUN_OUT
    yield steps.reap()
    scene.notes["reaped"] = True


def _claims_and_takes(cost: float) -> Script:
    def program(scene: Scene) -> Program:
        held = yield steps.claim(scene.queue)
        for lease in held[:1]:
            yield from _take(scene, lease, cost)

    return program


# What is judged


def _adds_up(*, least: float = _BURST) -> Callable[[Scene, Ask], list[str]]:
    """`least`: what is left of it if somebody has lowered the burst."""

    def judge(scene: Scene, ask: Ask) -> list[str]:
        ((left,),) = ask("select coalesce(tokens, %s) from faultline.budgets where name = %s", _BURST, scene.queue)
        total = float(left) + sum(scene.notes["taken"].values())
        faults = []
        if not least - _A_LITTLE <= total <= _BURST + _A_LITTLE:
            faults.append(f"{scene.notes['taken']} was taken and {left} is left of {_BURST}")
        if left < 0:
            faults.append(f"{left} is left")
        if "stale" in scene.notes:
            faults.append(f"{scene.notes['stale']} has taken something after its lease was taken back")
        return faults + drained(scene, ask)

    return judge


def _nobody_waits_for_long(scene: Scene, ask: Ask) -> list[str]:
    """By the rate that holds in the end, all have their tokens in a moment."""
    ask("update time_of_the_explorer set since = clock_timestamp(), ahead_before = ahead, ahead = ahead + interval '30 s'")
    return drained(scene, ask)


SCENES = [
    Scenario(
        "budget-two-takers",
        "two jobs take from what is enough for one of them, and a third gives it up",
        _full,
        {"A": _takes(0, 6), "B": _takes(1, 6, COMMIT), "C": _takes(2, 6, ROLLBACK)},
        stops={"A": _INSIDE},
        judge=_adds_up(),
    ),
    Scenario(
        "budget-take-again",
        "a take whose answer was lost is sent again, while another one takes the rest",
        _full,
        {"A": _takes(0, 4), "A again": _takes(0, 4), "B": _takes(1, 2)},
        stops={"A": _INSIDE},
        judge=_adds_up(),
    ),
    Scenario(
        "budget-take-raise",
        "jobs take while an operator raises the burst: that makes no token",
        _full,
        {"A": _takes(0, 6), "B": _takes(1, 6), "operator": _sets(_SLOW | {"burst": 20})},
        stops={"A": _INSIDE},
        judge=_adds_up(),
    ),
    Scenario(
        "budget-take-lower",
        "jobs take while an operator lowers the burst, and another one changes his mind",
        _full,
        {
            "A": _takes(0, 4),
            "B": _takes(1, 4),
            "operator": _sets(_SLOW | {"burst": 5}),
            "another": _sets(_SLOW | {"burst": 7}, ROLLBACK),
        },
        stops={"A": _INSIDE},
        judge=_adds_up(least=5),
    ),
    Scenario(
        "budget-take-expiry",
        "a job takes when its lease has run out, or is about to, and so does the one that has it next",
        _full,
        {"A": _takes_late(6), "reaper": _reaps, "B": _claims_and_takes(4)},
        stops={"A": _INSIDE},
        judge=_adds_up(),
    ),
    Scenario(
        "budget-wait-raise",
        "a job is told to wait, and gives its lease back for a long time; an operator raises the rate meanwhile",
        _empty,
        {"A": _takes_or_waits(steps.release_for), "operator": _sets(_FAST)},
        stops={"A": _INSIDE},
        judge=_nobody_waits_for_long,
    ),
    Scenario(
        "budget-suspend-raise",
        "a flow is told to wait, and suspends for a long time; an operator raises the rate meanwhile",
        _empty,
        {"A": _takes_or_waits(steps.suspend_for), "operator": _sets(_FAST)},
        stops={"A": _INSIDE},
        judge=_nobody_waits_for_long,
    ),
]
