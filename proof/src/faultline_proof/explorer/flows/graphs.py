"""Scenes with graphs, jobs that start again, and copies of jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline_proof.explorer.flows import programs as does
from faultline_proof.explorer.flows import steps
from faultline_proof.explorer.flows.judge import expect, state
from faultline_proof.explorer.scenarios import Scenario

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene
    from faultline_proof.explorer.scenarios import Ask


def _chain(scene: Scene) -> Program:
    """Three jobs of a graph, one after the other; the first one runs."""
    nodes: list[dict[str, Any]] = [
        {"task": "root", "queue": scene.queue},
        {"name": "first", "task": "first", "queue": scene.queue},
        {"name": "second", "task": "second", "queue": scene.queue, "after": ["first"]},
        {"name": "third", "task": "third", "queue": scene.queue, "after": ["second"]},
    ]
    placed = yield steps.enqueue_flow(json.dumps(nodes))
    scene.notes["nodes"] = [row[1] for row in placed][1:]
    scene.jobs["second"] = scene.notes["nodes"][1]
    yield from does.claimed(scene)


def _the_rest_is_cancelled(scene: Scene, ask: Ask) -> list[str]:
    states = [state(ask, job_id) for job_id in scene.notes["nodes"]]
    return [] if states == ["succeeded", "cancelled", "cancelled"] else [f"the jobs of the graph are {states}"]


# Again


def _starts_again(scene: Scene) -> Program:
    yield from does.patiently(scene, [scene.notes["job"]], steps.continue_as_new)


def _with_history(scene: Scene) -> Program:
    yield from does.running(scene, "job")
    yield steps.record(scene.notes["job"], steps.call("1"))
    yield steps.receive(scene.notes["job"], "2", name="approval")


def _kept_for_the_next_life(scene: Scene, ask: Ask) -> list[str]:
    """A signal that came before or after is kept; the history is empty; the job is due."""
    calls = ask("select number from faultline.calls")
    kept = ask("select payload, received_by from faultline.signals")
    faults = [] if (calls, kept) == ([], [(1, None)]) else [f"the calls are {calls}, the signals {kept}"]
    return faults + expect(ask, scene.jobs["job"], "due")


SCENES = [
    Scenario(
        "graph-cancel",
        "the first job of a chain completes while the next one is cancelled",
        _chain,
        {"first": does.completes("first"), "operator": does.cancels("second")},
        stops={"first": ("complete", *steps.RESOLVE), "operator": steps.CANCEL},
        judge=_the_rest_is_cancelled,
    ),
    Scenario(
        "again-signal",
        "a job starts again with an empty history while a signal comes for its former life",
        _with_history,
        {"job": _starts_again, "sender": does.signals("job")},
        stops={"job": ("continue_as_new", "keep_earlier_children", "forget_round"), "sender": ("signal", *steps.RESOLVE)},
        judge=_kept_for_the_next_life,
    ),
]
