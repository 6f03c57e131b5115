"""What workers, senders and operators of flows do, as programs of the explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.errors import LockNotAvailable

from faultline_proof.explorer import steps as plain
from faultline_proof.explorer.flows import steps
from faultline_proof.explorer.steps import BEGIN, COMMIT, ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline_proof.explorer.flows.steps import Held
    from faultline_proof.explorer.programs import Program, Scene, Script
    from faultline_proof.explorer.steps import Step

_TRIES = 2


# Set-ups


def running(scene: Scene, *names: str, **fields: Any) -> Program:
    """Enqueue jobs of these names and claim them."""
    fields = {"max_attempts": 1, **fields}
    placed = yield plain.enqueue([scene.job(name, **fields) for name in names])
    scene.jobs |= {name: place.job_id for name, place in zip(names, placed, strict=True)}
    yield from claimed(scene)


def claimed(scene: Scene) -> Program:
    """Claim what is due, and note the leases by the names of the jobs."""
    for lease in (yield steps.claim(scene.queue)):
        scene.notes[lease.task] = lease
        scene.jobs[lease.task] = lease.job_id


def family(children: int, *, policy: str = "raise", waits: bool = True, claims: bool = True) -> Script:
    """A parent with children that run; it waits for them."""

    def set_up(scene: Scene) -> Program:
        yield from running(scene, "parent")
        parent = scene.notes["parent"]
        yield steps.spawn(parent, scene.queue, children, policy=policy)
        if claims:
            yield from claimed(scene)
        if waits:
            yield steps.suspend(parent, waits=[steps.children(policy=policy)])

    return set_up


# Programs


def patiently(scene: Scene, leases: Sequence[Held], verb: Callable[..., Step], **more: Any) -> Program:
    """As the worker: what is busy is sent again."""
    left = list(leases)
    for _ in range(_TRIES):
        refused = yield verb(*left, **more)
        busy = {refusal[0] for refusal in refused if refusal[3] == "busy"}
        left = [lease for lease in left if lease.job_id in busy]
        if not left:
            return
    scene.unsent.append(verb(*left, **more))


def waits(name: str, *, policy: str = "raise") -> Script:
    def program(scene: Scene) -> Program:
        yield from patiently(scene, [scene.notes[name]], steps.suspend, waits=[steps.children(policy=policy)])

    return program


def completes(*names: str) -> Script:
    """Complete these, in one batch, and resolve afterwards, as the worker does."""

    def program(scene: Scene) -> Program:
        yield from patiently(scene, [scene.notes[name] for name in names], steps.complete)
        yield steps.resolve()

    return program


def fails(name: str) -> Script:
    def program(scene: Scene) -> Program:
        yield from patiently(scene, [scene.notes[name]], steps.fail)
        yield steps.resolve()

    return program


def completes_in_a_transaction(name: str) -> Script:
    """What `tx.complete` does: the nudge is committed later than it was written."""

    def program(scene: Scene) -> Program:
        yield BEGIN
        yield steps.complete(scene.notes[name])
        yield COMMIT

    return program


def resolves(times: int = 2, max_nudges: int = 100) -> Script:
    """A worker that resolves again and again, each time from where it was."""

    def program(scene: Scene) -> Program:
        for _ in range(times):
            scene.notes["cursor"] = (yield steps.resolve(scene.notes.get("cursor"), max_nudges))[2]

    return program


def resolves_and_dies(_: Scene) -> Program:
    yield BEGIN
    yield steps.resolve()
    yield ROLLBACK


def cancels(name: str) -> Script:
    def program(scene: Scene) -> Program:
        yield steps.cancel(scene.jobs[name])
        yield steps.sweep()

    return program


def until_free(verb: Step) -> Program:
    """Send it until nobody holds a row that it will not wait for."""
    for _ in range(4):
        try:
            yield verb
        except LockNotAvailable:
            continue
        return


def sweeps(_: Scene) -> Program:
    yield steps.sweep()


def retries(name: str) -> Script:
    def program(scene: Scene) -> Program:
        scene.notes["retried"] = False
        yield steps.retry(scene.jobs[name])
        scene.notes["retried"] = True

    return program


def spawns(name: str, number: str = "1") -> Script:
    """Spawn one child; a row that is held is asked for again."""

    def program(scene: Scene) -> Program:
        yield from until_free(steps.spawn(scene.notes[name], scene.queue, number=number))

    return program


def takes(name: str) -> Script:
    def program(scene: Scene) -> Program:
        scene.notes["taken"] = yield steps.take(scene.notes[name])

    return program


def signals(name: str, *payloads: Any, then_resolves: bool = True, **more: Any) -> Script:
    def program(scene: Scene) -> Program:
        new = scene.notes.setdefault("new", [])
        for payload in payloads or (1,):
            new.append((yield steps.signal(scene.jobs[name], payload, **more)))
        if then_resolves:
            yield steps.resolve()

    return program


def signals_in_a_transaction(name: str) -> Script:
    def program(scene: Scene) -> Program:
        yield BEGIN
        yield steps.signal(scene.jobs[name], 1)
        yield COMMIT

    return program


def asks(name: str, **more: Any) -> Script:
    """Ask for the signal, and wait if it is not there."""

    def program(scene: Scene) -> Program:
        status, _ = yield steps.receive(scene.notes[name], **more)
        if status == "none":
            yield from patiently(scene, [scene.notes[name]], steps.suspend, waits=[steps.approval()])

    return program
