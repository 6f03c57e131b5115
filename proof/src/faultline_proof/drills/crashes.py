"""Workers that die with SIGKILL: in the middle of a batch, inside the job's transaction, after its commit, by the job."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.reads import views
from faultline_proof.drill import Drill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from faultline_proof.stage import Actor, Stage

JOBS = 2000
JOB_SECONDS = 0.05
#: At default settings, with leases of thirty seconds: the database notices that the worker's session is gone.
SECONDS_MAX = 6.0


def crash(stage: Stage) -> None:
    stage.app.enqueue_many(Submission("wait", f'{{"seconds": {JOB_SECONDS}}}') for _ in range(JOBS))
    victim, _ = stage.worker("A", queues=["default=50"]), stage.worker("B", queues=["default=50"])
    stage.wait_for(lambda: stage.workers() > 1, "both workers are up")
    stage.wait_for(lambda: stage.app.database.run(views.counts())["succeeded"] >= JOBS // 5, "a fifth of the jobs is done")
    victim.signal(signal.SIGKILL)
    stage.faults_are_over()
    killed_at = stage.app.database.run(views.clock())
    held = stage.app.database.run(views.held_by(victim.pid))
    stage.note("worker_killed", worker_name="A", signal="SIGKILL", jobs_held=len(held))
    if held:
        stage.verdict.took_effect("SIGKILL of a worker that held jobs")
    stage.wait_for(lambda: stage.app.database.run(views.counts())["succeeded"] == JOBS, "all jobs are done")
    recovered = [job.claimed_at for job_id in held if (job := stage.app.job(job_id)).claimed_at is not None]
    seconds = max(((at - killed_at).total_seconds() for at in recovered), default=0.0)
    stage.note("recovered", jobs=len(held), seconds=round(seconds, 1))
    counts = stage.app.database.run(views.counts())
    stage.verdict.expect("jobs enqueued and in the ledger", counts["succeeded"], JOBS)
    stage.verdict.expect("jobs still open", sum(counts.values()) - counts["succeeded"], 0)
    stage.verdict.holds("jobs that the killed worker held, run again", len(held), holds=len(held) > 0)
    stage.verdict.holds("seconds until the last of them ran again", round(seconds, 1), holds=seconds < SECONDS_MAX)
    stage.expect_sound()


def crash_mid_apply(stage: Stage, task: str = "apply") -> None:
    stage.make_effects()
    (handle,) = stage.app.enqueue_many([Submission(task, '{"account": 1, "barrier": "A has written"}', lease_seconds=4.0)])
    with stage.barrier("A has written"):
        # Its heart is muted: the lease is to run out while the transaction is open.
        a = stage.worker("A", mute=True, faults=["before_commit_sent=kill"])
        stage.wait_for_arrival("A has written")
        stage.wait_for_lapse(handle.id)
        taken = stage.app.database.run(verbs.reap())
    a.wait()
    stage.verdict.expect("jobs that a reaper could take while A's transaction was open", taken, [])
    stage.verdict.expect("effects after A was killed before its commit", stage.effects(), [])
    stage.worker("B")
    stage.wait_for_end(handle.id)
    stage.verdict.expect("effects in the end, (account, token)", stage.effects(), [(1, 2)])
    stage.verdict.expect("the job", stage.standing(handle.id), "succeeded, token 2")
    stage.expect_sound()


def crash_after_commit(stage: Stage, task: str = "apply") -> None:
    stage.make_effects()
    jobs = [
        Submission(task, '{"account": 1}', queue="in its transaction", lease_seconds=2.0),
        Submission("nothing", queue="by itself", lease_seconds=2.0),
    ]
    done = [handle.id for handle in stage.app.enqueue_many(jobs)]
    # Both are committed by the server, and nobody here has heard of it.
    killed = [
        stage.worker("A1", queues=["in its transaction=1"], faults=["after_commit_committed=kill"]),
        stage.worker("A2", queues=["by itself=1"], faults=["after_complete_committed=kill"]),
    ]
    for actor in killed:
        actor.wait()
    stage.verdict.expect("both jobs after the crashes", [stage.standing(one) for one in done], ["succeeded, token 1"] * 2)
    stage.wait_for_lapse(*done)
    stage.verdict.expect("jobs left for a reaper to take", stage.app.database.run(verbs.reap()), [])
    # A worker that has run what came later has seen all there was to run.
    later, last = stage.app.enqueue_many([Submission("nothing", queue=job.queue) for job in jobs])
    b = stage.worker("B", queues=["in its transaction=1", "by itself=1"])
    stage.wait_for_end(later.id, last.id)
    others = [job_id for job_id, _ in b.starts() if job_id not in (later.id, last.id)]
    stage.verdict.expect("jobs run since then, but for the new ones", others, [])
    stage.verdict.expect("effects, (account, token)", stage.effects(), [(1, 1)])
    stage.verdict.expect("both jobs in the end", [stage.standing(one) for one in done], ["succeeded, token 1"] * 2)
    stage.expect_sound()


INNOCENTS = 99
ATTEMPTS = 2
#: Longer than a beat, so that a slow machine's heart keeps the innocents' leases.
LEASE_SECONDS = 1.5
#: Until it is found out, a poison job is started up to three times more often than it has attempts.
DEATHS_MAX = ATTEMPTS + 3


def poison_job(stage: Stage) -> None:
    """One job kills whoever runs it. A supervisor starts another worker each time, which claims all hundred jobs at once."""
    poison, *innocents = [
        handle.id
        for handle in stage.app.enqueue_many(
            [
                Submission("poison", priority=-1, max_attempts=ATTEMPTS, lease_seconds=LEASE_SECONDS),
                *[Submission("nothing", max_attempts=ATTEMPTS, lease_seconds=LEASE_SECONDS)] * INNOCENTS,
            ]
        )
    ]
    deaths = 0
    while deaths <= DEATHS_MAX:
        worker = stage.worker(f"W{deaths + 1}", queues=["default=100"])
        # What the last one held comes back while the next one starts.
        stage.wait_for_lapse(poison, *innocents)
        stage.app.database.run(verbs.reap())
        if _outlives(stage, worker, [poison, *innocents]):
            break
        deaths += 1
        stage.verdict.took_effect("SIGKILL of a worker by its own job")
        held = stage.app.database.run(views.counts())["running"]
        stage.note("worker_killed", worker_name=worker.name, signal="SIGKILL", jobs_held=held)
    jobs = [stage.app.job(job_id) for job_id in innocents]
    stage.verdict.expect("state of the poison job", stage.app.job(poison).state, JobState.FAILED)
    stage.verdict.holds(f"workers it killed, at most {DEATHS_MAX}", deaths, holds=ATTEMPTS <= deaths <= DEATHS_MAX)
    stage.verdict.expect("innocents that succeeded", sum(job.state is JobState.SUCCEEDED for job in jobs), INNOCENTS)
    stage.verdict.expect("attempts that each innocent was charged with", {job.attempt for job in jobs}, {1})
    stage.expect_sound()


def _outlives(stage: Stage, worker: Actor, job_ids: Sequence[UUID]) -> bool:
    """Whether this worker ends all jobs, instead of dying of one."""

    def all_ended() -> bool:
        return len(stage.app.database.run(views.final_states(job_ids))[0]) == len(job_ids)

    stage.wait_for(lambda: not worker.alive or all_ended(), f"{worker.name} has ended all jobs, or died")
    return worker.alive


DRILLS = (
    Drill("crash-mid-execution", "one of two workers is killed with SIGKILL in the middle of a batch", crash),
    Drill(
        "crash-mid-apply",
        "a worker is killed in the job's transaction, after its writes and before its commit",
        crash_mid_apply,
    ),
    Drill(
        "crash-mid-apply-blocking",
        "crash-mid-apply with a blocking task, which runs in a thread",
        partial(crash_mid_apply, task="apply_in_thread"),
    ),
    Drill("crash-after-commit", "a worker is killed between the commit and hearing of it", crash_after_commit),
    Drill(
        "crash-after-commit-blocking",
        "crash-after-commit with a blocking task",
        partial(crash_after_commit, task="apply_in_thread"),
    ),
    Drill("poison-job", "a job kills every worker that runs it, with 99 innocents in the same hands", poison_job),
)
