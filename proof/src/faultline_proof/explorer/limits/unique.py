"""Scenes of unique jobs: who is answered with a job that waits is followed by a run that sees what he has committed.

A submitter writes a change and submits in one transaction; a run reads all changes that it can see. In the end workers go on
until nothing waits, and every change that was committed must have been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline_proof.explorer.limits import steps
from faultline_proof.explorer.limits.judge import held_of
from faultline_proof.explorer.scenarios import Scenario
from faultline_proof.explorer.steps import BEGIN, COMMIT, LEASES_RUN_OUT, ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.explorer.flows.steps import Held
    from faultline_proof.explorer.programs import Program, Scene, Script
    from faultline_proof.explorer.scenarios import Ask
    from faultline_proof.explorer.steps import Step

_ROUNDS = 10
_REPLACE: dict[str, Any] = {"then": "replace"}
_DEBOUNCE: dict[str, Any] = {"then": "replace", "debounce": 0.001, "at_most": 1}
_QUEUED = "select count(*) from faultline.open_jobs where queue = %s and state = 'queued' and unique_key is not null"
_RUNNING = "select id, fencing_token, lease_owner, task from faultline.open_jobs where queue = %s and state = 'running'"


# Set-ups


def _nothing(scene: Scene) -> Program:
    scene.notes |= {"committed": [], "answered": {}, "held": []}
    yield from ()


def _queued(scene: Scene, **fields: Any) -> Program:
    """One job waits, for a change that is there."""
    yield steps.change(scene.number, "first")
    ((job_id, _),) = yield steps.submit_unique(scene.queue, "first", **fields)
    scene.jobs["first"] = job_id
    scene.notes |= {"committed": ["first"], "answered": {"first": job_id}, "held": []}


def _running(scene: Scene) -> Program:
    """It runs, and has read what there was."""
    yield from _queued(scene)
    scene.notes["held"] = yield steps.claim(scene.queue)
    yield steps.read(scene.number, scene.notes["held"])


def _expiring(scene: Scene) -> Program:
    yield from _queued(scene, expires_seconds=30)


# Programs


def _submits(name: str, end: Step = COMMIT, **unique: Any) -> Script:
    """Write something, and submit a job that is to see it."""

    def program(scene: Scene) -> Program:
        yield BEGIN
        yield steps.change(scene.number, name)
        scene.notes["open"] = scene.notes.get("open", 0) + 1
        ((job_id, _),) = yield steps.submit_unique(scene.queue, name, unique)
        scene.notes["answered"][name] = job_id
        yield end
        scene.notes["open"] -= 1
        if end is COMMIT:
            scene.notes["committed"].append(name)

    return program


def _works(scene: Scene) -> Program:
    held = yield steps.claim(scene.queue, patient=False)
    if held:
        yield steps.read(scene.number, held)
        yield steps.complete(*held)


def _ends(make: Callable[..., Step]) -> Script:
    """What the set-up holds, without reading again."""

    def program(scene: Scene) -> Program:
        yield make(*scene.notes["held"])
        _meets_who_submits(scene)

    return program


def _cancels(end: Step) -> Script:
    def program(scene: Scene) -> Program:
        yield BEGIN
        yield steps.cancel(scene.jobs["first"])
        # From now on its row is locked: whoever comes is answered with another job.
        answered = scene.notes["answered"].items()
        scene.notes["relied"] = [name for name, job_id in answered if job_id == scene.jobs["first"]]
        yield end

    return program


def _reaps(scene: Scene) -> Program:
    yield LEASES_RUN_OUT
    yield steps.reap()
    _meets_who_submits(scene)


def _meets_who_submits(scene: Scene) -> None:
    """What goes back to the queue does not see a job that is not committed, and waits for nobody: then both wait."""
    if scene.notes.get("open"):
        scene.notes["met"] = 1


def _expires(_: Scene) -> Program:
    yield LEASES_RUN_OUT
    yield steps.expire()


# What is judged


def _judge(*, waiting: int = 1, excused: str = "", latest: bool = False) -> Callable[[Scene, Ask], list[str]]:
    """`waiting`: so many may wait. `latest`: the last arguments are run. `excused`: nobody need see the first `change`, or
    what the first `job` was to do when it was cancelled.
    """

    def judge(scene: Scene, ask: Ask) -> list[str]:
        faults = []
        _asked(ask, steps.expire())  # what somebody held when it was done before
        ((queued,),) = ask(_QUEUED, scene.queue)
        most = waiting + scene.notes.get("met", 0)
        if queued > most:
            faults.append(f"{queued} jobs of one key wait, and {most} may")
        _drain(scene, ask)
        seen = [row[0] for row in ask("select name from seen where scene = %s", scene.number)]
        excuses = {"change": ["first"], "job": scene.notes.get("relied", [])}.get(excused, [])
        missed = [name for name in scene.notes["committed"] if name not in seen and name not in excuses]
        if missed:
            faults.append(f"no run has seen what was committed by {', '.join(missed)}")
        last = ask("select args from seen where scene = %s order by id desc limit 1", scene.number)
        if latest and last and last[0][0] != scene.notes["committed"][-1]:
            faults.append(f"the last run had the arguments {last[0][0]}, and {scene.notes['committed'][-1]} came last")
        both = ask(
            "select j.id from faultline.journal e join faultline.jobs j on j.id = e.job_id"
            " where e.event = 'expired' and (j.fencing_token > 0 or j.state <> 'cancelled')"
        )
        return faults + [f"job {job_id} has expired, and was run" for (job_id,) in both]

    return judge


def _drain(scene: Scene, ask: Ask) -> None:
    """Run what waits, as workers would, until nothing does."""
    for _ in range(_ROUNDS):
        held = [held_of(row) for row in ask(_RUNNING, scene.queue)]
        # Of a lease that its program has not ended: that run has read before.
        fresh: list[Held] = [] if held else _asked(ask, steps.claim(scene.queue))
        if fresh:
            _asked(ask, steps.read(scene.number, fresh))
        if held or fresh:
            _asked(ask, steps.complete(*held, *fresh))
        elif not ask(f"{_QUEUED} and next_run_at < 'infinity'", scene.queue)[0][0]:
            return
        ask(
            "update time_of_the_explorer set since = clock_timestamp(), ahead_before = ahead, ahead = ahead + interval '1 s'"
        )


def _asked(ask: Ask, step: Step) -> Any:
    return step.statement.read(ask(step.statement.sql, *step.statement.params))


#: Between the look at the key, the lock on its job and the answer.
_INSIDE = ("insert_unique_jobs", "still_stands")

SCENES = [
    Scenario(
        "unique-two-submit",
        "two submit one key at the same time, and a worker claims",
        _queued,
        {"A": _submits("a"), "B": _submits("b"), "worker": _works},
        judge=_judge(),
    ),
    Scenario(
        "unique-first-of-its-key",
        "two submit a key that nobody has used; one of them changes his mind",
        _nothing,
        {"A": _submits("a", ROLLBACK), "B": _submits("b"), "C": _submits("c"), "worker": _works},
        judge=_judge(),
    ),
    Scenario(
        "unique-submit-claim",
        "a job is claimed while somebody is answered with it",
        _queued,
        {"A": _submits("a"), "worker": _works, "B": _works},
        judge=_judge(),
    ),
    Scenario(
        "unique-look-claim",
        "a job is claimed between the look whether it waits and the answer",
        _queued,
        {"A": _submits("a"), "worker": _works},
        stops={"A": _INSIDE},
        judge=_judge(),
    ),
    Scenario(
        "unique-submit-running",
        "a job is submitted while the one before runs and is completed",
        _running,
        {"A": _submits("a"), "holder": _ends(steps.complete), "B": _works},
        stops={"A": _INSIDE},
        judge=_judge(),
    ),
    Scenario(
        "unique-replace-claim",
        "two replace a job that is being claimed: the last one's arguments are run",
        _queued,
        {"A": _submits("a", **_REPLACE), "B": _submits("b", **_REPLACE), "worker": _works},
        judge=_judge(latest=True),
    ),
    Scenario(
        "unique-debounce-claim",
        "two put a job off that is being claimed",
        _queued,
        {"A": _submits("a", **_DEBOUNCE), "B": _submits("b", **_DEBOUNCE), "worker": _works},
        judge=_judge(latest=True),
    ),
    Scenario(
        "unique-supersede-retry",
        "a job fails and is to be tried again while another one is submitted in its place",
        _running,
        {"A": _submits("a"), "holder": _ends(steps.fail), "B": _works},
        judge=_judge(),
    ),
    Scenario(
        "unique-supersede-release",
        "a job is given back while another one is submitted in its place",
        _running,
        {"A": _submits("a"), "holder": _ends(steps.release), "B": _submits("b"), "worker": _works},
        judge=_judge(),
    ),
    Scenario(
        "unique-supersede-reap",
        "a job is taken back from its holder while another one is submitted in its place",
        _running,
        {"A": _submits("a"), "reaper": _reaps, "B": _works},
        judge=_judge(),
    ),
    Scenario(
        "unique-cancel",
        "a job is cancelled while others rely on it",
        _queued,
        {"operator": _cancels(COMMIT), "A": _submits("a"), "worker": _works},
        judge=_judge(excused="job"),
    ),
    Scenario(
        "unique-cancel-undone",
        "an operator cancels a job and changes his mind: who came meanwhile has another one",
        _queued,
        {"operator": _cancels(ROLLBACK), "A": _submits("a"), "worker": _works},
        judge=_judge(waiting=2),
    ),
    Scenario(
        "unique-expire-claim",
        "a job expires while it is claimed, and while somebody relies on it",
        _expiring,
        {"upkeep": _expires, "A": _submits("a"), "worker": _works},
        judge=_judge(excused="change"),
    ),
]
