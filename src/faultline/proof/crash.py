"""A batch of jobs through real worker processes, one of which is killed in the middle with SIGKILL.

Nothing is lost, nothing is done twice, and the dead worker's jobs run again within seconds, long before their leases of
thirty seconds run out: the database notices that the worker's session is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.proof.drill import Check, Verdict
from faultline.runtime.client import Faultline
from faultline.store import invariants, scratch, views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = 2000
JOB_SECONDS = 0.05
SECONDS_MAX = 6.0
_PATIENCE_SECONDS = 60.0


def run(dsn: str) -> Verdict:
    """Run the batch in a scratch database beside the named one."""
    verdict = Verdict("crash")
    with scratch.database(dsn) as scratch_dsn, Faultline(scratch_dsn) as app:
        jobs = [Submission("wait", f'{{"seconds": {JOB_SECONDS}}}') for _ in range(JOBS)]
        app.enqueue_many(jobs)
        with worker_process(scratch_dsn) as victim, worker_process(scratch_dsn):
            wait_for(lambda: len(app.database.run(views.workers())) > 1)
            wait_for(lambda: app.database.run(views.counts())["succeeded"] >= JOBS // 5)
            os.kill(victim.pid, signal.SIGKILL)
            killed_at = app.database.run(views.clock())
            held = app.database.run(views.held_by(victim.pid))
            verdict.trace.append({"event": "worker_killed", "pid": victim.pid, "signal": "SIGKILL", "jobs_held": len(held)})
            wait_for(lambda: app.database.run(views.counts())["succeeded"] == JOBS)
        recovered = [job.claimed_at for job_id in held if (job := app.job(job_id)).claimed_at is not None]
        seconds = max(((at - killed_at).total_seconds() for at in recovered), default=0.0)
        verdict.trace.append({"event": "recovered", "jobs": len(held), "seconds": round(seconds, 1)})
        _judge(app, verdict, held=len(held), seconds=seconds)
    return verdict


def _judge(app: Faultline, verdict: Verdict, *, held: int, seconds: float) -> None:
    counts = app.database.run(views.counts())
    verdict.expect("jobs enqueued and in the ledger", counts["succeeded"], JOBS)
    verdict.expect("jobs still open", sum(counts.values()) - counts["succeeded"], 0)
    verdict.checks.append(Check("jobs that the killed worker held, run again", held, held > 0))
    verdict.checks.append(Check("seconds until the last of them ran again", round(seconds, 1), seconds < SECONDS_MAX))
    verdict.expect("invariants broken", [v.invariant for v in invariants.violations(app.database.run)], [])


@contextlib.contextmanager
def worker_process(dsn: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of `faultline.proof.tasks` as a process of its own, ended when the block is left."""
    command = [sys.executable, "-m", "faultline", "worker", "faultline.proof.tasks:app", "--quiet", *words]
    process = subprocess.Popen(command, env={**os.environ, "FAULTLINE_DSN": dsn})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = _PATIENCE_SECONDS, *, pause: float = 0.02) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"it did not happen within {seconds:g} s")
        time.sleep(pause)
