"""Others in the way: somebody locks the rows of jobs for longer than their leases, and reapers that die half way."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.reads import views
from faultline_proof.drill import Drill

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.stage import Stage

OTHERS = 100
HELD_UP_SECONDS = 10.0

DEAD = ("A", "B", "C")
JOBS_EACH = 700

_HOLD_REAPERS = """
create function hold_reapers() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(hashtext('half way'));
  return new;
end
$$;
create trigger hold_reapers before insert on faultline.journal for each row execute function hold_reapers();
"""


def lock_wait(stage: Stage, task: str = "credit") -> None:
    stage.make_effects()
    jobs = [Submission("nothing", lease_seconds=1), Submission(task, '{"account": 1}', lease_seconds=1)]
    finished, credited = (handle.id for handle in stage.app.enqueue_many(jobs))
    with psycopg.connect(stage.dsn) as somebody:
        with stage.barrier("rows are locked"):
            worker = stage.worker("A", faults=["before_execution=barrier:rows are locked"])
            stage.wait_for_arrival("rows are locked")
            (waiting,) = (handle.id for handle in stage.app.enqueue_many([Submission("nothing")]))
            locked = _lock(somebody, finished, credited, waiting)
        others = stage.app.enqueue_many([Submission("nothing")] * OTHERS)
        lapsed = "select bool_and(lease_expires_at < clock_timestamp()) from faultline.jobs where id = any(%s)"
        stage.wait_for(lambda: stage.value(lapsed, [finished, credited]) is True, "the leases have run out")
        stage.wait_for(lambda: worker.saw("lease_lost"), "the worker no longer trusts its leases")
        if locked == [JobState.RUNNING, JobState.RUNNING, JobState.QUEUED]:
            stage.verdict.took_effect("rows of two running jobs and a queued one locked for too long")
        ended = _endings_in_time(stage, [handle.id for handle in others])
        stage.verdict.expect("other jobs that ended meanwhile", ended, OTHERS)
        taken = stage.app.database.run(verbs.reap())
        stage.verdict.expect("jobs that a reaper could take meanwhile", taken, [])
        stage.verdict.expect("effects written meanwhile", stage.effects(), [])
    stage.note("rows_unlocked")
    stage.faults_are_over()
    stage.wait_for_end(finished, credited, waiting)
    states = {stage.app.job(job_id).state for job_id in (finished, credited, waiting)}
    stage.verdict.expect("states of the locked jobs in the end", states, {JobState.SUCCEEDED})
    # A completion that waited all the time is accepted, unless a reaper came first.
    token = stage.app.job(finished).fencing_token
    stage.verdict.holds("token of the one that only had to be completed", token, holds=token in (1, 2))
    # New effects are not: no lease outlasts a wait for a lock.
    stage.verdict.expect("effects, (account, token)", stage.effects(), [(1, 2)])
    stage.verdict.expect("token of the job with the effect", stage.app.job(credited).fencing_token, 2)
    stage.verdict.expect("rows in the ledger", stage.value("select count(*) from faultline.ledger"), OTHERS + len(locked))
    stage.expect_sound()


def _lock(connection: psycopg.Connection, *job_ids: UUID) -> list[str]:
    rows = connection.execute(
        "select state from faultline.open_jobs where id = any(%s) order by array_position(%s, id) for update",
        (list(job_ids), list(job_ids)),
    )
    return [state for (state,) in rows]


def _endings_in_time(stage: Stage, job_ids: list[UUID]) -> int:
    """How many of these jobs end before we call it being held up."""

    def ended() -> int:
        return len(stage.app.database.run(views.final_states(job_ids))[0])

    with contextlib.suppress(AssertionError):
        stage.wait_for(lambda: ended() == len(job_ids), "the others have ended", HELD_UP_SECONDS)
    return ended()


def reapers(stage: Stage) -> None:
    jobs = len(DEAD) * JOBS_EACH
    stage.app.enqueue_many([Submission("wait", '{"seconds": 600}', lease_seconds=600)] * jobs)
    dead = [stage.worker(name, queues=[f"default={JOBS_EACH}"]) for name in DEAD]
    stage.wait_for(lambda: _count(stage, "running") == jobs, "all jobs run")
    for worker in dead:
        worker.kill()
        stage.verdict.took_effect("SIGKILL of a worker that held jobs")
    # Nobody waits ten minutes for it, and leases that are short would run out before the drill is ready.
    stage.execute("update faultline.open_jobs set lease_expires_at = faultline.clock()")
    # A worker whose last heartbeat is recent would be taken for alive, one without a heartbeat on a new run of the server
    # for one that is coming back. Their leases are left alone for some seconds.
    stage.execute("update faultline.workers set heartbeat_at = heartbeat_at - interval '1 minute'")
    stage.execute("update faultline.settings set server_run_noticed_at = '-infinity'")
    stage.execute(_HOLD_REAPERS)
    with stage.barrier("half way"):
        # Each takes back at most a thousand at once, so there is something for everyone.
        killed, lost, living = (
            stage.worker("killed half way", queues=["none=1"], dsn=make_conninfo(stage.dsn, application_name="killed")),
            stage.worker("killed after its commit", queues=["none=1"], faults=["after_reap_committed=kill"]),
            stage.worker("living", queues=["none=1"]),
        )
        stage.wait_for_arrival("half way", actors=3)
        killed.kill()
        # The server looks every two seconds whether the client of a waiting session is still there.
        sessions = "select count(*) from pg_stat_activity where application_name = 'killed'"
        stage.wait_for(lambda: stage.value(sessions) == 0, "the server has noticed")
        stage.verdict.took_effect("SIGKILL of a reaper half way")
        stage.verdict.expect("jobs that are back while all reapers are half way", _count(stage, "queued"), 0)
    lost.wait()
    stage.wait_for(lambda: _count(stage, "queued") == jobs, "all jobs are back")
    reaped = stage.rows("select job_id, count(*) from faultline.journal where event = 'lease_reaped' group by 1")
    stage.verdict.expect("jobs that came back", len(reaped), jobs)
    stage.verdict.expect("jobs that came back more than once", [str(job_id) for job_id, n in reaped if n > 1], [])
    stage.verdict.expect("the living reaper lives", living.alive, wanted=True)
    as_before = stage.rows("select fencing_token, attempt, reaps, count(*) from faultline.open_jobs group by 1, 2, 3")
    stage.verdict.expect("token, attempt given back, reaps, jobs", as_before, [(1, 0, 1, jobs)])
    stage.expect_sound()


def _count(stage: Stage, state: str) -> int:
    return stage.app.database.run(views.counts())[state]


DRILLS = (
    Drill("lock-wait", "somebody locks the rows of jobs for longer than their leases", lock_wait),
    Drill("lock-wait-blocking", "lock-wait with a blocking task", partial(lock_wait, task="credit_in_thread")),
    Drill("reapers", "several reapers at once bring back the jobs of the dead, and some die of it", reapers),
)
