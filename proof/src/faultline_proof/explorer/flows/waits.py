"""Scenes in which a job goes to wait while what it waits for ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.explorer.flows import programs as does
from faultline_proof.explorer.flows import steps
from faultline_proof.explorer.flows.judge import expect, state
from faultline_proof.explorer.scenarios import Scenario

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene
    from faultline_proof.explorer.scenarios import Ask

_ENDS = ("complete", "nudge_waiters", *steps.RESOLVE)


def _goes_on(scene: Scene, ask: Ask) -> list[str]:
    return expect(ask, scene.jobs["parent"], "due")


# The same waits, with a batch


def _two_families(scene: Scene) -> Program:
    """Two parents with two children each. The names of the children tell their parents."""
    yield from does.running(scene, "one", "other")
    for name in ("one", "other"):
        yield steps.spawn(scene.notes[name], scene.queue, 2)
        for lease in (yield steps.claim(scene.queue)):
            scene.notes[f"{name}-{lease.task}"] = lease


def _two_waiting_families(scene: Scene) -> Program:
    yield from _two_families(scene)
    for name in ("one", "other"):
        yield steps.suspend(scene.notes[name])


def _both_wait(scene: Scene) -> Program:
    yield from does.patiently(scene, [scene.notes["one"], scene.notes["other"]], steps.suspend)


def _both_go_on(scene: Scene, ask: Ask) -> list[str]:
    return [fault for name in ("one", "other") for fault in expect(ask, scene.jobs[name], "due")]


# A job that is not one's child


def _two_strangers(scene: Scene) -> Program:
    yield from does.running(scene, "parent", "stranger")


def _watches(scene: Scene) -> Program:
    yield from does.until_free(steps.watch(scene.notes["parent"], scene.jobs["stranger"]))
    yield from does.patiently(scene, [scene.notes["parent"]], steps.suspend, waits=[{**steps.children(), "kind": "watch"}])


# Late nudges and dead resolvers


def _late_and_early(scene: Scene) -> Program:
    """Two parents that wait for one child each."""
    yield from does.running(scene, "one", "other")
    for name in ("one", "other"):
        yield steps.spawn(scene.notes[name], scene.queue)
        (scene.notes[f"{name}-child"],) = yield steps.claim(scene.queue)
        yield steps.suspend(scene.notes[name])


def _both_children_ended(scene: Scene) -> Program:
    yield from _late_and_early(scene)
    yield steps.complete(scene.notes["one-child"])
    yield steps.complete(scene.notes["other-child"])


# A child that is retried while its parent is looked at


def _child_failed(scene: Scene) -> Program:
    yield from does.running(scene, "parent")
    yield steps.spawn(scene.notes["parent"], scene.queue, 1, policy="keep")
    yield from does.claimed(scene)
    yield steps.suspend(scene.notes["parent"], waits=[steps.children(policy="keep")])
    yield steps.fail(scene.notes["child-0"])


def _waits_on_or_goes_on(scene: Scene, ask: Ask) -> list[str]:
    """Woken before the retry, it runs, finds its child open, and waits again. Woken after it, it would be for nothing."""
    return expect(ask, scene.jobs["parent"], "due", "waiting")


# A child that failed, and its parent that takes what came of it


def _child_failed_for_a_running_parent(scene: Scene) -> Program:
    yield from does.running(scene, "parent")
    yield steps.spawn(scene.notes["parent"], scene.queue, 1, policy="keep")
    yield from does.claimed(scene)
    yield steps.fail(scene.notes["child-0"])


def _what_is_taken_stays(scene: Scene, ask: Ask) -> list[str]:
    status, _ = scene.notes["taken"]
    ended = ask(
        "select ended_at is not null, result -> 'failed' from faultline.calls where job_id = %s", scene.jobs["parent"]
    )
    child = state(ask, scene.jobs["child-0"])
    right = ((True, {"0"}), "failed", False) if status == "taken" else ((False, set()), "due", True)
    found = ((ended[0][0], set(ended[0][1] or ())), child, scene.notes["retried"])
    return [] if found == right else [f"take answered {status}, and found is {found}"]


SCENES = [
    Scenario(
        "wait-end",
        "the parent goes to wait while its only child completes",
        does.family(1, waits=False),
        {"parent": does.waits("parent"), "child": does.completes("child-0")},
        stops={"parent": steps.SUSPEND, "child": _ENDS},
        judge=_goes_on,
    ),
    Scenario(
        "end-end",
        "the last two children complete at once",
        does.family(2),
        {"child": does.completes("child-0"), "sibling": does.completes("child-1")},
        stops={"child": _ENDS, "sibling": _ENDS},
        judge=_goes_on,
    ),
    Scenario(
        "wait-end-end",
        "the parent goes to wait while its last two children complete",
        does.family(2, waits=False),
        {"parent": does.waits("parent"), "child": does.completes("child-0"), "sibling": does.completes("child-1")},
        stops={"parent": steps.SUSPEND, "child": ("complete", *steps.RESOLVE), "sibling": ("complete",)},
        judge=_goes_on,
    ),
    Scenario(
        "wait-failure",
        "one of two children fails for good while its parent goes to wait, and would hear of that at once",
        does.family(2, policy="fast", waits=False),
        {"parent": does.waits("parent", policy="fast"), "child": does.fails("child-0")},
        stops={"parent": steps.SUSPEND, "child": ("fail", "end_badly", "nudge_waiters", *steps.RESOLVE)},
        judge=_goes_on,
    ),
    Scenario(
        "ends-crossed",
        "children of two parents complete in batches of opposite order",
        _two_waiting_families,
        {
            "A": does.completes("one-child-0", "other-child-0"),
            "B": does.completes("other-child-1", "one-child-1"),
        },
        stops={"A": ("complete", *steps.RESOLVE), "B": ("complete", *steps.RESOLVE)},
        judge=_both_go_on,
    ),
    Scenario(
        "waits-ends-crossed",
        "two parents go to wait in one batch while their children complete in another, in the opposite order",
        _two_families,
        {
            "parents": _both_wait,
            "children": does.completes("other-child-0", "one-child-0", "other-child-1", "one-child-1"),
        },
        stops={"parents": steps.SUSPEND, "children": ("complete", *steps.RESOLVE)},
        judge=_both_go_on,
    ),
    Scenario(
        "watch-end",
        "a job begins to wait for one that is not its child, which completes meanwhile",
        _two_strangers,
        {"parent": _watches, "stranger": does.completes("stranger")},
        stops={"parent": ("watch", *steps.SUSPEND), "stranger": ("complete", *steps.RESOLVE)},
        judge=_goes_on,
    ),
    Scenario(
        "late-nudge",
        "a nudge is committed after younger ones were resolved; the resolver goes on from where it was",
        _late_and_early,
        {
            "late": does.completes_in_a_transaction("one-child"),
            "early": does.completes_in_a_transaction("other-child"),
            "resolver": does.resolves(3, max_nudges=1),
        },
        stops={"resolver": steps.RESOLVE},
        judge=_both_go_on,
    ),
    Scenario(
        "dead-resolver",
        "a resolver dies with nudges in its hands while another one passes over them",
        _both_children_ended,
        {"dies": does.resolves_and_dies, "resolver": does.resolves(3)},
        stops={"dies": steps.RESOLVE, "resolver": steps.RESOLVE},
        judge=_both_go_on,
    ),
    Scenario(
        "retry-child-look",
        "a failed child is retried while its parent is looked at",
        _child_failed,
        {"resolver": does.resolves(2), "operator": does.retries("child-0")},
        stops={"resolver": steps.RESOLVE, "operator": ("retry", "requeue_ended_jobs")},
        judge=_waits_on_or_goes_on,
    ),
    Scenario(
        "take-retry",
        "the parent takes what came of its children while an operator retries the failed one",
        _child_failed_for_a_running_parent,
        {"parent": does.takes("parent"), "operator": does.retries("child-0")},
        stops={"parent": ("collect_outcomes",), "operator": ("retry", "requeue_ended_jobs")},
        judge=_what_is_taken_stays,
    ),
]
