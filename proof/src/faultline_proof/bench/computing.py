"""Jobs that compute, beside the same loop without a queue: what is left of the cores for the jobs themselves."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline.store import scratch
from faultline.store.reads import views
from faultline.worker.run.processes.task_processes import cpus
from faultline_proof.bench import tasks
from faultline_proof.bench.processes import wait_for, worker_process
from faultline_proof.bench.protocol import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

_GOAL = 90
_BARE = (
    "import sys, time\n"
    "from faultline_proof.bench.tasks import burn\n"
    "sys.stdin.readline()\n"
    "begun = time.perf_counter()\n"
    "for _ in range(int(sys.argv[1])): burn()\n"
    "print(time.perf_counter() - begun)\n"
)


def measure(dsn: str, *, jobs: int, rounds: int, tell: Callable[[str], None] = print) -> list[Figure]:
    """What is compared is measured in turns."""
    tell("measuring: jobs that compute, beside the same loop without a queue")
    found = []
    for turn in range(rounds):
        bare = bare_rate(jobs)
        with scratch.database(dsn) as scratch_dsn:
            apart = queue_rate(scratch_dsn, "compute", jobs, turn, "--queue", f"computing-{turn}={2 * cpus()}")
        with scratch.database(dsn) as scratch_dsn:
            words = ("--queue", f"computing-{turn}=50", "--processes", str(cpus()))
            on_loop = queue_rate(scratch_dsn, "compute_on_the_loop", jobs, turn, *words)
        found.append((bare, apart, on_loop))
    share = statistics.median(100 * apart / bare for bare, apart, _ in found)
    beside = statistics.median(100 * on_loop / bare for bare, _, on_loop in found)
    return [
        Figure(f"computing without a queue, {cpus()} processes", statistics.median(bare for bare, _, _ in found), "jobs/s"),
        Figure('computing jobs, executor="process"', statistics.median(apart for _, apart, _ in found), "jobs/s"),
        Figure("computing jobs, share of the same loop", share, "%", f"at least {_GOAL}", share >= _GOAL),
        Figure("the same on the event loop of as many workers", beside, "%"),
    ]


def bare_rate(jobs: int) -> float:
    each = jobs // cpus()
    programs = [
        subprocess.Popen([sys.executable, "-c", _BARE, str(each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(cpus())
    ]
    time.sleep(1.0)  # until all have imported what they need
    for program in programs:
        assert program.stdin is not None  # noqa: S101 - a pipe was asked for
        program.stdin.write("\n")
        program.stdin.flush()
    return sum(each / float(program.communicate()[0]) for program in programs)


def queue_rate(dsn: str, task: str, jobs: int, turn: int, *words: str) -> float:
    """From the first to the last job, by the database's clock, after all processes have run one."""
    queue = f"computing-{turn}"
    with Faultline(dsn) as app, worker_process(dsn, *words, application=tasks.APPLICATION):
        app.enqueue_many([Submission(task, queue=queue)] * 20 * cpus())
        wait_for(lambda: app.database.run(views.is_drained(queue)))
        begun = app.database.run(views.span(queue))[1]
        app.enqueue_many([Submission(task, queue=queue)] * jobs)
        wait_for(lambda: app.database.run(views.is_drained(queue)), 600, pause=0.25)
        return jobs / (app.database.run(views.span(queue))[1] - begun).total_seconds()
