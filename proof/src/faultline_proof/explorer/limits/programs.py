"""What workers, submitters and operators of limited queues do, as programs of the explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.errors import LockNotAvailable

from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.steps import BEGIN, COMMIT, LEASES_RUN_OUT, ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.explorer.flows.steps import Held
    from faultline_proof.explorer.programs import Program, Scene, Script
    from faultline_proof.explorer.steps import Step

GROUP = "g"
_WAITING = 4


# Set-ups


def stage(*, declared: dict[str, Any], running: int = 1, waiting: int = _WAITING, group: str | None = GROUP) -> Script:
    """A limited queue with some jobs of one group, of which some run."""

    def set_up(scene: Scene) -> Program:
        yield steps.declare(scene.queue, declared)
        names = [f"job-{number}" for number in range(waiting)]
        placed = yield steps.submit(scene.queue, *names, group=group)
        scene.jobs = {name: row[0] for name, row in zip(names, placed, strict=True)}
        scene.notes["held"] = []
        if running:
            scene.notes["held"] = yield steps.claim(scene.queue, running)

    return set_up


def each(concurrency: int, **more: Any) -> dict[str, Any]:
    return {"each_group": {"concurrency": concurrency, **more}}


def whole(concurrency: int) -> dict[str, Any]:
    return {"queue": {"concurrency": concurrency}}


STRICT: dict[str, Any] = {"each_group": {"ordered": True}}


def holders(scene: Scene) -> list[Held]:
    """The leases that the set-up took."""
    held: list[Held] = scene.notes["held"]
    return held


# Programs


def claims(times: int = 1, max_jobs: int = 10) -> Script:
    def program(scene: Scene) -> Program:
        for _ in range(times):
            yield steps.claim(scene.queue, max_jobs)

    return program


def within(*makes: Callable[[Scene], Step], end: Step = COMMIT) -> Script:
    """These, in one transaction."""

    def program(scene: Scene) -> Program:
        yield BEGIN
        for make in makes:
            yield make(scene)
        yield end

    return program


def undone(*makes: Callable[[Scene], Step]) -> Script:
    return within(*makes, end=ROLLBACK)


def once(make: Callable[[Scene], Step]) -> Script:
    def program(scene: Scene) -> Program:
        yield make(scene)

    return program


def busy_again(make: Callable[..., Step]) -> Script:
    """An ending of what the set-up holds; what is busy is sent again, as the worker does."""

    def program(scene: Scene) -> Program:
        left = holders(scene)
        for _ in range(2):
            refused = yield make(*left)
            busy = {refusal[0] for refusal in refused if refusal[3] == "busy"}
            left = [lease for lease in left if lease.job_id in busy]
            if not left:
                return
        scene.unsent.append(make(*left))

    return program


def claims_and_completes(scene: Scene) -> Program:
    """Claim, complete and claim again, all in one transaction: its own number must stay among the open ones."""
    yield BEGIN
    held = yield steps.claim(scene.queue, 1)
    if held:
        yield steps.complete(*held)
    yield steps.claim(scene.queue, 1)
    yield COMMIT


def completes_and_claims(scene: Scene) -> Program:
    yield BEGIN
    yield steps.complete(*holders(scene))
    held = yield steps.claim(scene.queue, 1)
    if held:
        yield steps.complete(*held)
    yield COMMIT


def reaps_late(scene: Scene) -> Program:
    """The leases run out, and are taken back."""
    yield LEASES_RUN_OUT
    yield steps.reap()
    scene.notes["reaped"] = True


# Single steps of a scene


def claim(scene: Scene) -> Step:
    return steps.claim(scene.queue)


def complete(scene: Scene) -> Step:
    return steps.complete(*holders(scene))


def fail(scene: Scene) -> Step:
    return steps.fail(*holders(scene))


def complete_or_give_up(scene: Scene) -> Step:
    """While somebody recovers, the whole table is locked: the worker sends it again later."""
    return steps.complete(*holders(scene), foreseen=(LockNotAvailable,))


def fail_or_give_up(scene: Scene) -> Step:
    return steps.fail(*holders(scene), foreseen=(LockNotAvailable,))


def release(scene: Scene) -> Step:
    return steps.release(*holders(scene))


def release_first(scene: Scene) -> Step:
    return steps.release(holders(scene)[0])


def submit(scene: Scene) -> Step:
    return steps.submit(scene.queue, "new", group=GROUP)


def submit_elsewhere(scene: Scene) -> Step:
    return steps.submit(scene.queue, "other", group="h")


def cancel_waiting(scene: Scene) -> Step:
    return steps.cancel(scene.jobs["job-1"])


def cancel_running(scene: Scene) -> Step:
    return steps.cancel(holders(scene)[0].job_id)


def recover(_: Scene) -> Step:
    return steps.recover()


def maintain_limits(_: Scene) -> Step:
    return steps.maintain_limits()


def recount(scene: Scene) -> Step:
    return steps.recount(scene.queue)


def limit_to(key: str, **fields: Any) -> Callable[[Scene], Step]:
    return lambda scene: steps.set_limit(scene.queue, key, **fields)


def reset(key: str) -> Callable[[Scene], Step]:
    return lambda scene: steps.reset_limit(scene.queue, key)


def declare(declared: dict[str, Any]) -> Callable[[Scene], Step]:
    return lambda scene: steps.declare(scene.queue, declared)
