"""Scenes with signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline_proof.explorer.flows import programs as does
from faultline_proof.explorer.flows import steps
from faultline_proof.explorer.flows.judge import expect
from faultline_proof.explorer.scenarios import Scenario

if TYPE_CHECKING:
    from faultline_proof.explorer.programs import Program, Scene
    from faultline_proof.explorer.scenarios import Ask


def _one(scene: Scene) -> Program:
    yield from does.running(scene, "job")


def _outcomes(ask: Ask) -> list[Any]:
    return [row[0] for row in ask("select outcome from faultline.calls where kind = 'signal' order by number")]


def _received(ask: Ask) -> list[tuple[Any, ...]]:
    return ask("select payload, received_by from faultline.signals order by id")


def _received_or_due(scene: Scene, ask: Ask) -> list[str]:
    outcomes, received = _outcomes(ask), _received(ask)
    if outcomes == ["done"] and received == [(1, "1")]:
        return []
    if outcomes in ([], [None]) and received == [(1, None)]:
        return expect(ask, scene.jobs["job"], "due")
    return [f"the call is {outcomes}, the signal {received}"]


# Timeouts


def _out_of_time(scene: Scene) -> Program:
    yield from _one(scene)
    yield steps.receive(scene.notes["job"], seconds=0)
    yield steps.suspend(scene.notes["job"], waits=[steps.approval(seconds=0)])


def _resumes(scene: Scene) -> Program:
    for lease in (yield steps.claim(scene.queue)):
        scene.notes["answer"] = (yield steps.receive(lease, seconds=0))[0]


def _signal_or_timeout(scene: Scene, ask: Ask) -> list[str]:
    outcomes, received, answer = _outcomes(ask), _received(ask), scene.notes.get("answer")
    right = {
        "received": (["done"], [(1, "1")]),
        "timeout": (["timeout"], [(1, None)]),
        None: ([None], [(1, None)]),
    }
    fine = (outcomes, received) == right.get(answer)
    return [] if fine else [f"receive answered {answer}, the call is {outcomes}, the signal {received}"]


# In order, and once


def _asks_twice(scene: Scene) -> Program:
    for number in ("1", "2"):
        for _ in range(2):
            status, _ = yield steps.receive(scene.notes["job"], number)
            if status == "received":
                break
        else:
            return


def _in_order(_: Scene, ask: Ask) -> list[str]:
    found = _received(ask)
    right = ([(1, None), (2, None)], [(1, "1"), (2, None)], [(1, "1"), (2, "2")])
    return [] if found in right else [f"the signals were received so: {found}"]


def _waits_for_approval(scene: Scene) -> Program:
    yield from _one(scene)
    yield steps.receive(scene.notes["job"])
    yield steps.suspend(scene.notes["job"], waits=[steps.approval()])


def _once(scene: Scene, ask: Ask) -> list[str]:
    new = sorted(scene.notes["new"])
    found = _received(ask)
    faults = [] if (new, len(found)) == ([False, True], 1) else [f"sent twice, it was new {new}, and there are {found}"]
    return faults + expect(ask, scene.jobs["job"], "due")


def _taken_over(scene: Scene) -> Program:
    """The first lease is stale, the second one good, and the signal is there."""
    yield from _one(scene)
    yield steps.signal(scene.jobs["job"], 1)
    scene.notes["stale"] = scene.notes["job"]
    yield steps.release(scene.notes["job"])
    yield from does.claimed(scene)


def _receives(name: str) -> Any:
    def program(scene: Scene) -> Program:
        scene.notes[f"answer of {name}"] = None
        scene.notes[f"answer of {name}"] = (yield steps.receive(scene.notes[name]))[0]

    return program


def _only_the_holder(scene: Scene, ask: Ask) -> list[str]:
    answers = [scene.notes["answer of stale"], scene.notes["answer of job"]]
    tokens = [row[0] for row in ask("select fencing_token from faultline.calls")]
    fine = answers[1] == "received" and answers[0] in (None, "stale") and tokens == [2]
    return [] if fine else [f"the stale holder and its successor were answered {answers}; the call has the tokens {tokens}"]


# A sender in an open transaction


def _renews_and_completes(scene: Scene) -> Program:
    """Nothing of what a sender does makes its receiver busy."""
    refused = yield steps.renew(scene.notes["job"])
    refused += yield steps.record(scene.notes["job"], steps.call("1"))
    refused += yield steps.complete(scene.notes["job"])
    scene.notes["refused"] = refused


def _nobody_was_busy(scene: Scene, ask: Ask) -> list[str]:
    refused = scene.notes["refused"]
    return [f"the job's worker was answered {refused}"] if refused else expect(ask, scene.jobs["job"], "succeeded")


# A race that the signal lost


def _closes(scene: Scene) -> Program:
    """Another call has won: the wait for the signal is closed."""
    yield steps.record(
        scene.notes["job"],
        steps.call("2", kind="race", name="race", result={"winner": "3"}),
        steps.call("1", "closed", kind="signal", name="approval"),
    )


def _comes_to_it(scene: Scene) -> Program:
    yield from _one(scene)
    yield steps.receive(scene.notes["job"])


def _closed_stays(_: Scene, ask: Ask) -> list[str]:
    """A signal for the call was refused, or is kept; the call that was closed has received nothing."""
    outcomes = _outcomes(ask)
    received = [by for _, by in _received(ask)]
    return [] if outcomes == ["closed"] and not any(received) else [f"the call is {outcomes}, received by {received}"]


SCENES = [
    Scenario(
        "signal-wait",
        "a signal meets a job that asks for it and goes to wait",
        _one,
        {"job": does.asks("job"), "sender": does.signals("job")},
        stops={"job": ("receive", *steps.SUSPEND), "sender": ("signal", *steps.RESOLVE)},
        judge=_received_or_due,
    ),
    Scenario(
        "signal-late-wait",
        "a signal that is committed late meets a job that asks for it and goes to wait",
        _one,
        {"job": does.asks("job"), "sender": does.signals_in_a_transaction("job"), "resolver": does.resolves(2)},
        stops={"job": steps.SUSPEND, "sender": (), "resolver": ()},
        judge=_received_or_due,
    ),
    Scenario(
        "signal-timeout",
        "a signal meets the end of the time for which it was waited",
        _out_of_time,
        {"job": _resumes, "sender": does.signals("job")},
        stops={"job": ("receive",), "sender": ("signal", *steps.RESOLVE)},
        judge=_signal_or_timeout,
    ),
    Scenario(
        "signals-in-order",
        "two signals in a row meet a job that asks for two: each once, in the order sent",
        _one,
        {"job": _asks_twice, "sender": does.signals("job", 1, 2, then_resolves=False)},
        stops={"job": ("receive",), "sender": ("signal",)},
        judge=_in_order,
    ),
    Scenario(
        "signal-twice",
        "the same signal is sent twice at once, under one key",
        _waits_for_approval,
        {"sender": does.signals("job", key="k"), "again": does.signals("job", key="k")},
        stops={"sender": ("signal", *steps.RESOLVE), "again": ("signal", *steps.RESOLVE)},
        judge=_once,
    ),
    Scenario(
        "receive-receive-stale",
        "a worker that lost its lease asks for a signal, and so does its successor",
        _taken_over,
        {"stale": _receives("stale"), "job": _receives("job")},
        stops={"stale": ("receive",), "job": ("receive",)},
        judge=_only_the_holder,
    ),
    Scenario(
        "signal-open-transaction",
        "a signal is sent in a transaction that stays open while its receiver renews, records and completes",
        _one,
        {"job": _renews_and_completes, "sender": does.signals_in_a_transaction("job")},
        stops={"job": ("complete",), "sender": ("signal",)},
        judge=_nobody_was_busy,
    ),
    Scenario(
        "race-signal",
        "a race is won by another call while the signal comes that one of its losers waits for",
        _comes_to_it,
        {"job": _closes, "sender": does.signals("job", for_call="1")},
        stops={"job": ("record",), "sender": ("signal", *steps.RESOLVE)},
        judge=_closed_stays,
    ),
]
