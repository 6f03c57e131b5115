"""Workers that stand still past their leases and go on as if nothing had happened: frozen, or without the interpreter."""

from __future__ import annotations

import fcntl
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline_proof.drill import Drill

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.stage import Stage

LEASE_SECONDS = 4.0  # until it is frozen it must not run out, also where the machine is busy


def zombie(stage: Stage, task: str = "apply") -> None:
    stage.make_effects()
    plain, applied = _enqueue(
        stage,
        Submission("dawdle", '{"seconds": 0}', queue="plain", lease_seconds=LEASE_SECONDS),
        Submission(task, '{"account": 1}', queue="applied", lease_seconds=LEASE_SECONDS),
    )
    a1 = stage.worker("A1", queues=["plain=1"], once=True, faults=["before_complete_sent=stop"])
    # Its heart is muted: nobody but the database is to tell it that it comes too late.
    a2 = stage.worker("A2", queues=["applied=1"], once=True, mute=True, faults=["before_execution=stop"])
    stage.wait_for(lambda: a1.saw("fault_took_effect") and a2.saw("fault_took_effect"), "both are frozen")
    with stage.barrier("A2 has tried"):
        stage.worker("B1", queues=["plain=1"])
        stage.worker("B2", queues=["applied=1"], faults=["before_execution=barrier:A2 has tried"])
        stage.wait_for_end(plain)
        a1.signal(signal.SIGCONT)
        stage.wait_for_arrival("A2 has tried")
        a2.signal(signal.SIGCONT)
        for thawed in (a1, a2):
            thawed.wait()
        early = stage.effects()
    stage.wait_for_end(applied)
    stage.verdict.expect("both jobs", [stage.standing(job_id) for job_id in (plain, applied)], ["succeeded, token 2"] * 2)
    claim = "thawed when another had done the job: its completion is refused"
    # A heartbeat that was frozen on its way may be refused as well.
    refused = [refusal for refusal in stage.refusals(plain, token=1) if refusal != ("renew", "token_mismatch")]
    stage.verdict.expect(claim, refused, [("complete", "token_mismatch")])
    stage.verdict.expect("result in the ledger", stage.app.job(plain).result, {"token": 2})
    claim = "thawed while another was at it: its transaction is refused"
    stage.verdict.expect(claim, stage.refusals(applied, token=1), [("fence", "token_mismatch")])
    stage.verdict.expect("effects then, and in the end (account, token)", (early, stage.effects()), ([], [(1, 2)]))
    stage.expect_sound()


#: In production the server waits sixty seconds for a worker that says nothing inside its transaction.
PATIENCE_SECONDS = 0.5


def zombie_in_transaction(stage: Stage, task: str = "apply") -> None:
    stage.make_effects()
    thawed, buried = _enqueue(
        stage,
        Submission(task, '{"account": 1, "barrier": "1"}', queue="thawed", lease_seconds=LEASE_SECONDS),
        Submission(
            task,
            f'{{"account": 2, "barrier": "2", "patience": {PATIENCE_SECONDS}}}',
            queue="buried",
            lease_seconds=LEASE_SECONDS,
        ),
    )
    with stage.barrier("1"), stage.barrier("2"):
        a1 = stage.worker("A1", queues=["thawed=1"])
        a2 = stage.worker("A2", queues=["buried=1"], once=True, mute=True)
        for name, actor in (("1", a1), ("2", a2)):
            stage.wait_for_arrival(name)
            actor.signal(signal.SIGSTOP)
            stage.verdict.took_effect("SIGSTOP inside the job's transaction")
            stage.note("worker_frozen", worker_name=actor.name, signal="SIGSTOP")
        stage.wait_for_lapse(thawed, buried)
        taken = stage.app.database.run(verbs.reap())
    stage.verdict.expect("jobs that anyone could take while the zombies held their rows", taken, [])
    a1.signal(signal.SIGCONT)
    stage.wait_for_end(thawed)
    stage.worker("B", queues=["thawed=1", "buried=1"])
    stage.wait_for_end(buried)
    a2.signal(signal.SIGCONT)
    a2.wait()
    claim = "thawed in time: its own transaction commits, though the lease had run out, for nobody else was granted the job"
    stage.verdict.expect(claim, stage.standing(thawed), "succeeded, token 1")
    claim = "thawed too late: the server has ended its transaction, and another worker has done the job"
    stage.verdict.expect(claim, stage.standing(buried), "succeeded, token 2")
    # It blames the server, not the task, and would give the job back.
    claim = "what it still tried to write, refused"
    stage.verdict.expect(claim, stage.refusals(buried, token=1), [("release", "token_mismatch")])
    stage.verdict.expect("effects, (account, token)", stage.effects(), [(1, 1), (2, 2)])
    stage.expect_sound()


HOG_LEASE_SECONDS = 2.5
HOG_SECONDS = 5.3
SEIZE_LEASE_SECONDS = 4.0
SEIZE_LEASES = 2.0


def gil_hog(stage: Stage) -> None:
    """Two tasks hold the interpreter for several leases: one in Python, one in a single call of a C function."""
    file = stage.folder / "seized"
    file.touch()
    python, extension = _enqueue(
        stage,
        Submission("hog", f'{{"seconds": {HOG_SECONDS}}}', queue="python", lease_seconds=HOG_LEASE_SECONDS),
        Submission("seize", f'{{"file": "{file}"}}', queue="extension", lease_seconds=SEIZE_LEASE_SECONDS),
    )
    with file.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        a1 = stage.worker("A1", queues=["python=2"])
        a2 = stage.worker("A2", queues=["extension=1"])
        stage.wait_for(lambda: a1.saw("execution_started") and a2.saw("execution_started"), "both tasks run")
        stage.worker("B", queues=["python=1", "extension=1"])
        # Its own heart cannot beat: whatever renews the lease meanwhile is another process.
        held_until = time.monotonic() + SEIZE_LEASES * SEIZE_LEASE_SECONDS
        stage.wait_for(lambda: time.monotonic() > held_until, "the interpreter was held for several leases")
        seized = not a2.saw("job_completed") and stage.app.job(extension).state == JobState.RUNNING
    stage.wait_for_end(extension)
    stage.wait_for_end(python)
    stage.verdict.took_effect(f"interpreter busy for {HOG_SECONDS / HOG_LEASE_SECONDS:.1f} leases")
    if seized:
        stage.verdict.took_effect(f"interpreter held for {SEIZE_LEASES:.1f} leases")
    claim = "busy in Python, it keeps its job: the interpreter lets the heartbeat's thread in every few milliseconds"
    stage.verdict.expect(claim, stage.standing(python), "succeeded, token 1")
    claim = "in a call that never lets go, it keeps its job: its companion process renews the lease"
    stage.verdict.expect(claim, stage.standing(extension), "succeeded, token 1")
    stage.verdict.expect("result in the ledger, by the epoch that gave it", stage.app.job(extension).result, 1)
    lapses = [entry for job_id in (python, extension) for entry in stage.journal(job_id) if entry.event == "lease_reaped"]
    stage.verdict.expect("times that a lease ran out", len(lapses), 0)
    stage.expect_sound()


def _enqueue(stage: Stage, *submissions: Submission) -> list[UUID]:
    return [handle.id for handle in stage.app.enqueue_many(submissions)]


DRILLS = (
    Drill("zombie", "workers are frozen past their leases, another one does their jobs, they thaw and write", zombie),
    Drill("zombie-blocking", "zombie with a blocking task", partial(zombie, task="apply_in_thread")),
    Drill(
        "zombie-in-transaction", "workers are frozen inside their jobs' transactions, one too long", zombie_in_transaction
    ),
    Drill(
        "zombie-in-transaction-blocking",
        "zombie-in-transaction with blocking tasks",
        partial(zombie_in_transaction, task="apply_in_thread"),
    ),
    Drill("gil-hog", "tasks hold Python's interpreter for several leases, so that heartbeats starve", gil_hog),
)
