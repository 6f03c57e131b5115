"""The programs: what clients of the protocol do. Each is a generator that yields its next step and is sent the answer.

An error is thrown into it; one that it does not foresee ends it. Its transaction has been rolled back by then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faultline.core.errors import StaleLease
from faultline.core.model import Submission
from faultline_proof.explorer import steps
from faultline_proof.explorer.steps import BEGIN, COMMIT, LEASES_RUN_OUT, ROLLBACK, Step

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease, Unwritten

Program = Generator[Step, Any, None]


@dataclass(slots=True)
class Scene:
    """What the programs of one schedule know of: a queue of its own, the jobs in it, the leases that the set-up took."""

    number: int
    #: Below which no token is granted, when the schedule begins.
    floor: int = 0
    jobs: dict[str, UUID] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    #: What was still busy when a program gave up on it: its worker would send it again until it is not.
    unsent: list[Step] = field(default_factory=list)
    #: What else the judge wants to know, by name.
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return f"queue-{self.number}"

    @property
    def lease(self) -> Lease:
        return self.leases[0]

    def job(self, name: str = "first", **fields: Any) -> Submission:
        return Submission(name, queue=self.queue, lease_seconds=steps.LEASE_SECONDS, **fields)

    def keyed(self, key: str, args: str = "{}") -> Submission:
        """A job with a key that no other schedule uses."""
        return self.job(key, args=args, idempotency_key=f"{key}-{self.number}")


Script = Callable[[Scene], Program]


# Workers


def works(scene: Scene) -> Program:
    for lease in (yield steps.claim(scene.queue)):
        yield steps.complete(lease)


def takes(scene: Scene) -> Program:
    yield steps.claim(scene.queue)


def takes_in_a_transaction(scene: Scene) -> Program:
    yield BEGIN
    yield steps.claim(scene.queue)
    yield COMMIT


def takes_and_rolls_back(scene: Scene) -> Program:
    yield BEGIN
    yield steps.claim(scene.queue)
    yield ROLLBACK
    yield steps.claim(scene.queue)


def works_with_an_effect(scene: Scene) -> Program:
    for lease in (yield steps.claim(scene.queue)):
        yield from _with_an_effect(lease)


def completes(scene: Scene) -> Program:
    unwritten: Unwritten = yield steps.complete(*scene.leases)
    if unwritten.busy:
        yield steps.complete(*unwritten.busy)


def completes_in_a_transaction(scene: Scene) -> Program:
    yield BEGIN
    yield steps.complete(*scene.leases)
    yield COMMIT


def completes_and_rolls_back(scene: Scene) -> Program:
    yield BEGIN
    yield steps.complete(*scene.leases)
    yield ROLLBACK


def completes_the_older(scene: Scene) -> Program:
    yield BEGIN
    yield steps.complete(scene.leases[0])
    yield COMMIT


def completes_the_newer(scene: Scene) -> Program:
    yield BEGIN
    yield steps.complete(scene.leases[1])
    yield COMMIT


def completes_with_an_effect(scene: Scene) -> Program:
    yield from _with_an_effect(scene.lease)


def _with_an_effect(lease: Lease) -> Program:
    """What `job.transaction()` does."""
    try:
        yield BEGIN
        yield steps.fence(lease)
        yield steps.effect(lease)
        unwritten: Unwritten = yield steps.complete(lease)
        yield ROLLBACK if unwritten.stale else COMMIT
    except StaleLease:
        yield steps.record_refusal(lease)


def writes_an_effect(scene: Scene) -> Program:
    """An effect in a transaction of its own, and the completion after it."""
    try:
        yield BEGIN
        yield steps.fence(scene.lease)
        yield steps.effect(scene.lease)
        yield COMMIT
    except StaleLease:
        yield steps.record_refusal(scene.lease)
    else:
        yield steps.complete(scene.lease)


def beats(scene: Scene) -> Program:
    yield steps.renew(*scene.leases)


def comes_back_and_completes(scene: Scene) -> Program:
    yield steps.heartbeat(scene.lease)
    yield steps.complete(scene.lease)


def beats_and_completes(scene: Scene) -> Program:
    yield steps.renew(scene.lease)
    yield steps.complete(scene.lease)


def beats_in_a_transaction(scene: Scene) -> Program:
    yield BEGIN
    yield steps.renew(scene.lease)
    yield COMMIT


def fails(scene: Scene) -> Program:
    yield BEGIN
    yield steps.fail(scene.lease)
    yield COMMIT


def fails_for_good(scene: Scene) -> Program:
    yield BEGIN
    yield steps.fail(scene.lease, "fail")
    yield COMMIT


def gives_back(scene: Scene) -> Program:
    yield BEGIN
    yield steps.release(scene.lease)
    yield COMMIT
    yield steps.complete(scene.lease)


def starts_and_completes(scene: Scene) -> Program:
    unwritten: Unwritten = yield steps.record_start(scene.lease)
    if not unwritten.stale and not unwritten.busy:
        yield steps.complete(scene.lease)


def remembers_and_completes(scene: Scene) -> Program:
    yield BEGIN
    yield steps.remember(scene.lease)
    yield COMMIT
    yield steps.complete(scene.lease)


def works_with_a_step(scene: Scene) -> Program:
    for lease in (yield steps.claim(scene.queue)):
        yield steps.remember(lease)
        yield steps.complete(lease)


def shows_progress(scene: Scene) -> Program:
    yield steps.progress(scene.lease)
    yield steps.complete(scene.lease)


def fences_both(scene: Scene) -> Program:
    first, second = scene.leases
    yield BEGIN
    for lease in (first, second):
        yield steps.fence(lease)
        yield steps.effect(lease)
    yield COMMIT


# Reapers and time


def time(_: Scene) -> Program:
    yield LEASES_RUN_OUT


def reaps(_: Scene) -> Program:
    yield steps.reap()


def reaps_in_a_transaction(_: Scene) -> Program:
    yield BEGIN
    yield steps.reap()
    yield COMMIT


def reaps_and_rolls_back(_: Scene) -> Program:
    yield BEGIN
    yield steps.reap()
    yield ROLLBACK


def notices_the_dead(_: Scene) -> Program:
    yield steps.reap(notice_dead=True)


def notices_the_dead_in_a_transaction(_: Scene) -> Program:
    yield BEGIN
    yield steps.reap(notice_dead=True)
    yield COMMIT


def reaps_when_the_leases_have_run_out(_: Scene) -> Program:
    yield LEASES_RUN_OUT
    yield steps.reap()


# Producers and operators


def cancels(scene: Scene) -> Program:
    yield BEGIN
    yield steps.cancel("first", scene.jobs["first"])
    yield COMMIT


def cancels_and_rolls_back(scene: Scene) -> Program:
    yield BEGIN
    yield steps.cancel("first", scene.jobs["first"])
    yield ROLLBACK


def cancels_and_retries(scene: Scene) -> Program:
    yield steps.cancel("first", scene.jobs["first"])
    yield steps.retry("first", scene.jobs["first"])


def retries(scene: Scene) -> Program:
    yield BEGIN
    yield steps.retry("first", scene.jobs["first"])
    yield COMMIT


def cancels_both_backwards(scene: Scene) -> Program:
    yield BEGIN
    for name in ("second", "first"):
        yield steps.cancel(name, scene.jobs[name])
    yield COMMIT


def enqueues(*keys: str, args: str = "{}") -> Script:
    def script(scene: Scene) -> Program:
        yield BEGIN
        yield steps.enqueue([scene.keyed(key, args) for key in keys])
        yield COMMIT

    return script


def recovers(scene: Scene) -> Program:
    yield BEGIN
    yield steps.recover(scene.floor + 100)
    yield COMMIT


def recovers_and_rolls_back(scene: Scene) -> Program:
    yield BEGIN
    yield steps.recover(scene.floor + 100)
    yield ROLLBACK


def prunes(_: Scene) -> Program:
    yield BEGIN
    yield steps.prune()
    yield COMMIT


def prunes_and_rolls_back(_: Scene) -> Program:
    yield BEGIN
    yield steps.prune()
    yield ROLLBACK
    yield steps.prune()


def enqueues_and_rolls_back(scene: Scene) -> Program:
    yield BEGIN
    yield steps.enqueue([scene.keyed("key")])
    yield ROLLBACK
    yield steps.enqueue([scene.keyed("key")])


def enqueues_the_same_id(scene: Scene) -> Program:
    """The answer to the first submission was lost; it is sent again."""
    yield BEGIN
    yield steps.enqueue([scene.job(id=scene.jobs["first"])])
    yield COMMIT
