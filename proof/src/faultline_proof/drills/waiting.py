"""Jobs that others could make wait: urgent ones behind a backlog, due ones among delayed ones, ones that appear late.

Each check names its bound. The bounds are what a busy machine can keep; `faultline bench` tells what a quiet one does.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from datetime import datetime
from typing import TYPE_CHECKING

from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.reads import views
from faultline_proof.drill import Drill
from faultline_proof.reads import proving

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from psycopg import Connection

    from faultline_proof.stage import Stage

#: A worker's next claim finds it, or a hint brings it about. Anything slower waits for a timer.
SECONDS_MAX = 0.5

BACKLOG = 50_000
URGENT = 10


def urgent_behind_backlog(stage: Stage) -> None:
    stage.app.database.run(proving.fill(BACKLOG, task="wait", args='{"seconds": 0.005}', delay_seconds=-60.0))
    worker = stage.worker("A")
    stage.wait_for(lambda: worker.saw("job_completed"), "the worker is busy")
    seconds = []
    for number in range(1, URGENT + 1):
        # A priority that the worker has not seen before: it has no idea that there may be work.
        (handle,) = stage.app.enqueue_many([Submission("nothing", priority=-number)])
        stage.wait_for_end(handle.id)
        seconds.append(_seconds_to_the_end(stage, handle.id))
        stage.note("urgent_job_done", job_id=handle.id, priority=-number, seconds=seconds[-1])
    counts = stage.app.database.run(views.counts())
    stage.verdict.took_effect("urgent job behind the backlog", URGENT)
    stage.verdict.holds(f"jobs of {BACKLOG:,} still waiting", counts["queued"], holds=counts["queued"] > BACKLOG // 2)
    stage.verdict.holds(
        f"seconds until each urgent job was done, each at most {SECONDS_MAX}", seconds, holds=max(seconds) <= SECONDS_MAX
    )
    stage.expect_sound(whole=False)  # the others were put there past all clients


DELAYED = 200_000
DUE = 20
CLAIM_MILLISECONDS_MAX = 5.0


def delayed_million(stage: Stage) -> None:
    stage.worker("A")
    for _ in range(10):  # each within the deadline of a call, also where the machine is busy
        stage.app.database.run(proving.fill(DELAYED // 10, task="nothing", delay_seconds=86_400.0))
    stage.verdict.took_effect("jobs due tomorrow in the same queue", DELAYED)
    stage.wait_for(lambda: stage.workers() > 0, "the worker is up")
    seconds = []
    for _ in range(DUE):
        (handle,) = stage.app.enqueue_many([Submission("nothing")])
        stage.wait_for_end(handle.id)
        seconds.append(_seconds_to_the_end(stage, handle.id))
    stage.note("due_jobs_done", jobs=DUE, seconds_max=max(seconds), delayed=DELAYED)
    milliseconds = round(_claim_milliseconds(stage), 2)
    stage.verdict.holds(
        f"seconds until each of {DUE} due jobs was done, each at most {SECONDS_MAX}",
        max(seconds),
        holds=max(seconds) <= SECONDS_MAX,
    )
    stage.verdict.holds(
        f"milliseconds for a claim that finds nothing due, at most {CLAIM_MILLISECONDS_MAX}",
        milliseconds,
        holds=milliseconds <= CLAIM_MILLISECONDS_MAX,
    )
    stage.verdict.expect(
        "jobs due tomorrow that were run today", DELAYED - stage.app.database.run(views.counts())["queued"], 0
    )
    stage.expect_sound(whole=False)  # the others were put there past all clients


def _claim_milliseconds(stage: Stage) -> float:
    """The quickest of many: what the machine's other work adds is none of the protocol's cost."""
    times = []
    with stage.app.database.connect() as session:
        for number in range(20):
            begun = time.perf_counter()
            run_on(session, verbs.claim("default", owner=f"drill/{number}", max_jobs=100))
            times.append(time.perf_counter() - begun)
    return min(times) * 1000


#: Below the place where it has claimed a worker looks again every second, or after a hundred times what that took, and after
#: ten seconds at most. A busy machine needs them.
FOUND_SECONDS_MAX = 12.0
LATER = 2000


def late_commit(stage: Stage) -> None:
    stage.app.enqueue_many([Submission("wait", '{"seconds": 1}')] * 2)
    worker = stage.worker("A", queues=["default=2"])
    stage.wait_for(lambda: len(worker.starts()) > 1, "the worker has its hands full, and is not woken for new jobs")
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(stage.app.database.connect()) for _ in _LATE]
        jobs = [enqueue(stage, session) for enqueue, session in zip(_LATE.values(), sessions, strict=True)]
        later = stage.app.enqueue_many([Submission("wait", '{"seconds": 0.01}')] * LATER)
        stage.wait_for_end(later[0].id)
        found = [_committed(stage, session, job_id) for session, job_id in zip(sessions, jobs, strict=True)]
    for how, (hints, seconds) in zip(_LATE, found, strict=True):
        stage.verdict.took_effect("job committed after later ones were claimed")
        most = FOUND_SECONDS_MAX if how == _UNFORESEEN else SECONDS_MAX
        claim = f"{how}: seconds from the commit until it was claimed, at most {most}"
        stage.verdict.holds(claim, seconds, holds=seconds <= most)
        if how != _UNFORESEEN:
            stage.verdict.expect(f"{how}: hints at its place that the commit gave", hints, 1)
    stage.expect_sound()


def _committed(stage: Stage, session: Connection, job_id: UUID) -> tuple[int, float]:
    """Commit a job that was enqueued long ago. Answers with the hints at its place, and when it was claimed."""
    with stage.app.database.connect() as listener:
        listener.execute("listen faultline")
        committed_at = stage.app.database.run(views.clock())
        session.execute("commit")
        stage.wait_for_end(job_id)
        job = stage.app.job(job_id)
        heard = [json.loads(notice.payload) for notice in listener.notifies(timeout=0)]
    hints = [hint for hint in heard if datetime.fromisoformat(hint["run_at"]) <= job.created_at]
    seconds = _seconds(committed_at, job.claimed_at)
    stage.note("late_job_claimed", job_id=job_id, hints=len(hints), seconds=seconds)
    return len(hints), seconds


def _by_client(stage: Stage, session: Connection) -> UUID:
    session.execute("begin")
    return stage.app.using(session).enqueue_many([Submission("nothing")])[0].id


def _after_a_write(_: Stage, session: Connection) -> UUID:
    session.execute("begin")
    session.execute("select pg_current_xact_id()")
    return run_on(session, verbs.enqueue_many([Submission("nothing")]))[0].job_id


def _at_first(_: Stage, session: Connection) -> UUID:
    # Sent together: a transaction that has lasted a while is known to be a larger one, and its jobs are announced.
    with session.pipeline():
        session.execute("begin")
        return run_on(session, verbs.enqueue_many([Submission("nothing")]))[0].job_id


_UNFORESEEN = "enqueued by SQL before anything else in its transaction"
_LATE: dict[str, Callable[[Stage, Connection], UUID]] = {
    "enqueued by the client in its caller's transaction": _by_client,
    "enqueued by SQL after something was written": _after_a_write,
    _UNFORESEEN: _at_first,
}


def _seconds_to_the_end(stage: Stage, job_id: UUID) -> float:
    """From the submission to the completion, by the database's clock."""
    job = stage.app.job(job_id)
    return _seconds(job.created_at, job.finished_at)


def _seconds(since: datetime, until: datetime | None) -> float:
    return math.nan if until is None else round((until - since).total_seconds(), 3)


DRILLS = (
    Drill("urgent-behind-backlog", f"urgent jobs come while {BACKLOG:,} others wait", urgent_behind_backlog),
    Drill("delayed-million", f"{DELAYED:,} jobs due tomorrow stand where today's jobs are", delayed_million),
    Drill("late-commit", "jobs appear when their transaction commits, long after later ones were claimed", late_commit),
)
