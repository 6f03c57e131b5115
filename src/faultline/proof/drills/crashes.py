"""Workers that die with SIGKILL: anywhere in a batch, inside the job's own transaction, just after its commit."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.proof.drill import Drill
from faultline.store import views

if TYPE_CHECKING:
    from faultline.proof.stage import Stage

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


DRILLS = (Drill("crash-mid-execution", "one of two workers is killed with SIGKILL in the middle of a batch", crash),)
