"""Scenes in which whole trees end, are retried, begin again or are copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline_proof.explorer.flows import programs as does
from faultline_proof.explorer.flows import steps
from faultline_proof.explorer.flows.judge import expect
from faultline_proof.explorer.scenarios import Scenario
from faultline_proof.explorer.steps import LEASES_RUN_OUT

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene
    from faultline_proof.explorer.scenarios import Ask


def _nothing_lives(scene: Scene, ask: Ask) -> list[str]:
    live = ask("select task, state from faultline.open_jobs where state in ('queued', 'running')")
    return [f"of a cancelled tree live on: {live}"] if live else expect(ask, scene.jobs["parent"], "cancelled")


def _with_a_child(scene: Scene) -> Program:
    """A running job with a child, which may spawn more."""
    yield from does.running(scene, "parent")
    yield steps.spawn(scene.notes["parent"], scene.queue, number="9")


# Retries


def _failed_parent(scene: Scene) -> Program:
    """It has failed with two open children, and its sweep is due."""
    yield from does.family(2, waits=False, claims=False)(scene)
    yield steps.fail(scene.notes["parent"])


def _children_follow_their_parent(scene: Scene, ask: Ask) -> list[str]:
    """Retried, it has its children again, whatever a sweep did before; without, none is left."""
    children = [row[0] for row in ask("select state from faultline.open_jobs where task <> 'parent' order by id")]
    wanted = ["queued"] * 2
    faults = [] if children == wanted else [f"the retried parent's children are {children}"]
    return faults + expect(ask, scene.jobs["parent"], "due")


# The same call twice


def _one_child(_: Scene, ask: Ask) -> list[str]:
    ((children, edges),) = ask(
        "select (select count(*) from faultline.open_jobs where task <> 'parent'), (select count(*) from faultline.edges)"
    )
    return [] if (children, edges) == (1, 1) else [f"there are {children} children and {edges} edges"]


def _keyed(scene: Scene) -> Program:
    yield from does.running(scene, "parent")
    yield from does.running(scene, "stranger", idempotency_key=f"key-{scene.number}")


def _spawns_the_keyed(scene: Scene) -> Program:
    job = [{"task": "stranger", "queue": scene.queue, "idempotency_key": f"key-{scene.number}"}]
    yield from does.until_free(steps.spawn(scene.notes["parent"], scene.queue, jobs=job))
    yield from does.patiently(scene, [scene.notes["parent"]], steps.suspend)


# Zombies


def _taken_over(scene: Scene) -> Program:
    yield from does.running(scene, "parent")
    scene.notes["stale"] = scene.notes["parent"]
    yield steps.release(scene.notes["parent"])
    yield from does.claimed(scene)


def _records(name: str) -> Any:
    def program(scene: Scene) -> Program:
        yield steps.record(scene.notes[name], steps.call("1", result=name))

    return program


def _only_the_holder_wrote(_: Scene, ask: Ask) -> list[str]:
    calls = ask("select number, result, fencing_token from faultline.calls")
    return [] if calls == [("1", "parent", 2)] else [f"the calls are {calls}"]


# Reaps


def _reaped(_: Scene) -> Program:
    yield steps.reap()
    yield steps.resolve()
    yield steps.sweep()


def _expired(scene: Scene) -> Program:
    yield from does.family(1, waits=False)(scene)
    yield steps.record_start(scene.notes["child-0"])
    yield LEASES_RUN_OUT


def _the_parent_goes_on(scene: Scene, ask: Ask) -> list[str]:
    return expect(ask, scene.jobs["parent"], "due")


SCENES = [
    Scenario(
        "cancel-tree-end",
        "the tree is cancelled while the child completes",
        does.family(1),
        {"operator": does.cancels("parent"), "child": does.completes("child-0")},
        stops={"operator": steps.CANCEL, "child": ("complete", *steps.RESOLVE)},
        judge=lambda scene, ask: (
            expect(ask, scene.jobs["parent"], "cancelled") + expect(ask, scene.jobs["child-0"], "cancelled", "succeeded")
        ),
    ),
    Scenario(
        "cancel-tree-spawn",
        "the tree is cancelled while a child spawns children of its own",
        does.family(1),
        {"operator": does.cancels("parent"), "child": does.spawns("child-0")},
        stops={"operator": steps.CANCEL, "child": steps.SPAWN},
        judge=_nothing_lives,
    ),
    Scenario(
        "cancel-spawn",
        "a job is cancelled while it spawns children itself",
        _with_a_child,
        {"operator": does.cancels("parent"), "parent": does.spawns("parent")},
        stops={"operator": steps.CANCEL, "parent": steps.SPAWN},
        judge=_nothing_lives,
    ),
    Scenario(
        "retry-sweep",
        "a failed parent is retried while its children are swept",
        _failed_parent,
        {"operator": does.retries("parent"), "sweeper": does.sweeps},
        stops={"operator": ("retry", "requeue_ended_jobs"), "sweeper": ("sweep",)},
        judge=_children_follow_their_parent,
    ),
    Scenario(
        "spawn-spawn",
        "the same children are asked for twice at once, since an answer was late",
        lambda scene: does.running(scene, "parent"),
        {"parent": does.spawns("parent"), "again": does.spawns("parent")},
        stops={"parent": steps.SPAWN, "again": steps.SPAWN},
        judge=_one_child,
    ),
    Scenario(
        "spawn-key-end",
        "a child's key is that of a job which completes meanwhile",
        _keyed,
        {"parent": _spawns_the_keyed, "stranger": does.completes("stranger")},
        stops={"parent": (*steps.SPAWN, "set_watched", *steps.SUSPEND), "stranger": ("complete", *steps.RESOLVE)},
        judge=_the_parent_goes_on,
    ),
    Scenario(
        "record-record-stale",
        "a worker that lost its lease records a call, and so does its successor",
        _taken_over,
        {"stale": _records("stale"), "parent": _records("parent")},
        stops={"stale": ("record",), "parent": ("record",)},
        judge=_only_the_holder_wrote,
    ),
    Scenario(
        "reap-wait",
        "the last attempt of a child is reaped while its parent goes to wait",
        _expired,
        {"reaper": _reaped, "parent": does.waits("parent")},
        stops={"reaper": (*steps.REAP, *steps.RESOLVE), "parent": steps.SUSPEND},
        judge=_the_parent_goes_on,
    ),
]
