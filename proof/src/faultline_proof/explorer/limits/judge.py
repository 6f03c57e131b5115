"""What must be true when a scene of limits has ended: nothing is exceeded now, and everything comes to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.explorer.flows.steps import Held
from faultline_proof.explorer.limits import steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.explorer.programs import Scene
    from faultline_proof.explorer.scenarios import Ask
    from faultline_proof.explorer.steps import Step

_ROUNDS = 40
#: What rounds may go by with nothing granted, while jobs wait and none runs: a queue is heard, then granted from.
_EMPTY_ROUNDS = 3
#: The judge comes 30 s later: a longer lease holds the queue longer.
_HELD = "select true from faultline.settings where limits_held_until > faultline.clock()"
_RUNNING = "select id, fencing_token, lease_owner, task from faultline.open_jobs where queue = %s and state = 'running'"


def keeps(
    *, queue: int | None = None, group: int | None = None, then: tuple[int | None, int | None] | None = None
) -> Callable[[Scene, Ask], list[str]]:
    """No more run than these, and all that waits is granted when it is asked for again and again. `then`: the two
    that hold in the end, if somebody has changed them.
    """

    def judge(scene: Scene, ask: Ask) -> list[str]:
        faults = exceeded(scene, ask, queue=queue, group=group)
        last_queue, last_group = then or (queue, group)
        return faults + drained(scene, ask, queue=last_queue, group=last_group)

    return judge


def exceeded(scene: Scene, ask: Ask, *, queue: int | None, group: int | None) -> list[str]:
    faults = []
    running = ask(_RUNNING, scene.queue)
    if queue is not None and len(running) > queue:
        faults.append(f"{len(running)} of the queue run, and {queue} may")
    groups = ask(
        "select group_key, count(*) from faultline.open_jobs where queue = %s and state = 'running'"
        " and group_key is not null group by 1",
        scene.queue,
    )
    faults += [f"{count} of {key} run, and {group} may" for key, count in groups if group is not None and count > group]
    return faults


def drained(
    scene: Scene, ask: Ask, *, queue: int | None = None, group: int | None = None, in_order: bool = False
) -> list[str]:
    """Complete what runs, claim, and again, as workers would. `in_order`: by the names of the jobs.

    Where `recover` holds the queue, nothing is granted until that is over.
    """
    if ask(_HELD):
        if too_early := _do(ask, steps.claim(scene.queue)):
            return [f"{too_early[0][2]} was granted while recover holds the queue"]
        ask("update faultline.settings set limits_held_until = faultline.clock()")
    empty = 0
    granted_before = ""
    for _ in range(_ROUNDS):
        running = [held_of(row) for row in ask(_RUNNING, scene.queue)]
        if running:
            _do(ask, steps.complete(*running))
        granted = [str(row[2]) for row in _do(ask, steps.claim(scene.queue))]
        faults = exceeded(scene, ask, queue=queue, group=group)
        if in_order and granted and max(granted) < granted_before:
            faults.append(f"{granted} was granted after {granted_before}")
        granted_before = max([granted_before, *granted])
        if faults:
            return faults
        waiting = ask("select task from faultline.open_jobs where queue = %s and state = 'queued'", scene.queue)
        if not granted and not waiting:
            return []
        empty = 0 if granted else empty + 1
        if empty > _EMPTY_ROUNDS:
            return [f"nothing runs, and these wait for ever: {[task for (task,) in waiting]}"]
    return [f"it goes on for ever: {ask(_RUNNING, scene.queue)}"]


def held_of(row: tuple[object, ...]) -> Held:
    job_id, token, owner, task = row
    return Held(job_id, token, owner, task)  # type: ignore[arg-type]


def _do(ask: Ask, step: Step) -> list[tuple[object, ...]]:
    return ask(step.statement.sql, *step.statement.params)


def started(ask: Ask, queue: str) -> list[str]:
    """The tasks of a queue that have been granted at least once."""
    query = (
        "select task from faultline.open_jobs where queue = %s and fencing_token > 0"
        " union select task from faultline.ledger where queue = %s"
    )
    return sorted(str(row[0]) for row in ask(query, queue, queue))
