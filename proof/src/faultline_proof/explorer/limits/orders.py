"""Scenes of strict groups: the next one starts when the one before has ended for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.explorer.limits import programs as does
from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.limits.judge import drained, exceeded, started
from faultline_proof.explorer.scenarios import Scenario

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Scene
    from faultline_proof.explorer.scenarios import Ask

_STRICT = does.stage(declared=does.STRICT, waiting=3)


def _one_after_the_other(scene: Scene, ask: Ask) -> list[str]:
    """Whoever has started has all before it behind it."""
    faults = exceeded(scene, ask, queue=None, group=1)
    open_jobs = {task for (task,) in ask("select task from faultline.open_jobs where state in ('queued', 'running')")}
    begun = started(ask, scene.queue)
    for task in begun:
        before = sorted(other for other in scene.jobs if other < task and other in open_jobs)
        if before:
            faults.append(f"{task} has started, and {', '.join(before)} before it have not ended")
    return faults + drained(scene, ask, group=1, in_order=True)


SCENES = [
    Scenario(
        "order-retry",
        "the first of a strict group fails and is to be tried again; others claim",
        _STRICT,
        {"holder": does.within(does.fail), "A": does.claims(2), "B": does.within(does.claim)},
        judge=_one_after_the_other,
    ),
    Scenario(
        "order-release",
        "the first of a strict group is given back while others claim",
        _STRICT,
        {"holder": does.within(does.release), "A": does.undone(does.claim), "B": does.claims(2)},
        judge=_one_after_the_other,
    ),
    Scenario(
        "order-reap",
        "the first of a strict group is taken back from its holder, which completes all the same",
        _STRICT,
        {"reaper": does.reaps_late, "holder": does.busy_again(steps.complete), "B": does.claims(2)},
        judge=_one_after_the_other,
    ),
    Scenario(
        "order-retry-reap",
        "what was tried again is taken back: its place is the first still",
        _STRICT,
        {"holder": does.once(does.fail), "A": does.claims(), "reaper": does.reaps_late, "B": does.claims()},
        judge=_one_after_the_other,
    ),
    Scenario(
        "order-cancel",
        "the first of a strict group is cancelled while its holder fails",
        _STRICT,
        {"operator": does.within(does.cancel_running), "holder": does.busy_again(steps.fail), "B": does.claims(2)},
        judge=_one_after_the_other,
    ),
    Scenario(
        "order-recover",
        "an operator recovers while the first of a strict group waits to be tried again",
        _STRICT,
        {"operator": does.within(does.recover), "holder": does.once(does.fail_or_give_up), "B": does.within(does.claim)},
        with_recover=True,
        judge=_one_after_the_other,
    ),
    Scenario(
        "order-maintain",
        "upkeep forgets no permit that a waiting job keeps",
        _STRICT,
        {"holder": does.within(does.fail), "upkeep": does.within(does.maintain_limits, does.recount), "B": does.claims(2)},
        judge=_one_after_the_other,
    ),
]
