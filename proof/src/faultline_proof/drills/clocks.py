"""Wrong clocks: workers and clients that are hours off, and a role that tries to move the database's own idea of time."""

from __future__ import annotations

import contextlib
import secrets
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from faultline.app.application import Faultline
from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.reads import views
from faultline_proof.drill import Drill
from faultline_proof.verdict import CannotPlay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline_proof.stage import Stage

HOURS = 5
SKEWS = {"fast": HOURS * 3600.0, "slow": -HOURS * 3600.0}
JOBS_EACH = 5
#: A job that takes longer than its lease lives by its renewals.
LEASE_SECONDS, JOB_SECONDS = 3.0, 3.3

_INFINITY = "returns timestamptz language sql return 'infinity'::timestamptz"
#: What a role tries that may call a worker's verbs, and whether it is refused. What is not refused must be without effect.
ATTEMPTS = {
    "set faultline.now = '2100-01-01'": False,
    "set faultline.clock = '2100-01-01'": False,
    "set faultline.verb = 'prune'": False,
    "set timezone = 'Pacific/Kiritimati'": False,
    f"create function pg_temp.statement_timestamp() {_INFINITY}": False,
    f"create function pg_temp.clock_timestamp() {_INFINITY}": False,
    "set search_path = pg_temp, pg_catalog, faultline": False,
    f"create or replace function faultline.now() {_INFINITY}": True,
    f"create or replace function faultline.clock() {_INFINITY}": True,
    f"create function faultline.statement_timestamp() {_INFINITY}": True,
    "alter function faultline.reap set search_path = pg_temp, pg_catalog": True,
    "set session_replication_role = replica": True,
    "update faultline.open_jobs set lease_expires_at = '-infinity'": True,
    "update faultline.workers set heartbeat_at = '-infinity'": True,
    "select faultline.recover()": True,
}


def clock_skew(stage: Stage) -> None:
    _expect_no_effect_on_leases(stage)
    _expect_an_intruder_moves_nothing(stage)
    stage.expect_sound()


def _expect_no_effect_on_leases(stage: Stage) -> None:
    args = f'{{"seconds": {JOB_SECONDS}}}'
    jobs = [Submission("deadline", args, queue=name, lease_seconds=LEASE_SECONDS) for name in SKEWS] * JOBS_EACH
    handles = stage.app.enqueue_many(jobs)
    for name, skew in SKEWS.items():
        stage.worker(name, queues=[f"{name}={JOBS_EACH}"], skew=skew)
    with Faultline(stage.dsn, host=stage.host(seconds=lambda: time.time() + SKEWS["fast"])) as client:
        (delayed,) = client.enqueue_many([Submission("nothing", queue="later", delay_seconds=60)])
    stage.wait_for_end(*(handle.id for handle in handles))
    done = [stage.app.job(handle.id) for handle in handles]
    for job in done:
        # The worker's idea of the time, told by the deadline of the attempt, against the database's.
        off = datetime.fromisoformat(job.result) - job.created_at
        if round(off / timedelta(hours=1)) * 3600 == SKEWS[job.queue]:
            stage.verdict.took_effect(f"a worker's clock {HOURS} hours {job.queue}")
    stage.verdict.expect("jobs that ran", len([job for job in done if job.state is JobState.SUCCEEDED]), len(handles))
    stage.verdict.expect("tokens, one epoch for each", {job.fencing_token for job in done}, {1})
    stage.verdict.expect("leases that anyone thought had run out", stage.value("select count(*) from faultline.journal"), 0)
    later = stage.app.job(delayed.id)
    age = stage.app.database.run(views.clock()) - later.created_at
    stage.verdict.expect(
        "when a job that a client with a wrong clock delays by a minute is due",
        later.next_run_at,
        later.created_at + timedelta(minutes=1),
    )
    stage.verdict.holds("how old it is for the database", str(age), holds=abs(age) < timedelta(hours=1))


def _expect_an_intruder_moves_nothing(stage: Stage) -> None:
    stage.app.enqueue_many([Submission("nothing", queue="held", lease_seconds=600)])
    (lease,) = stage.app.database.run(verbs.claim("held", owner="holder/1", max_jobs=1))
    before = stage.app.job(lease.job_id)
    refused = {}
    with _intruder(stage) as intruder:
        for attempt in ATTEMPTS:
            refused[attempt] = _is_refused(intruder, attempt)
            stage.note("intrusion", attempt=attempt, refused=refused[attempt])
            stage.verdict.took_effect("attempt to move the database's time")
        taken = intruder.execute("select job_id from faultline.reap()").fetchall()
        granted = intruder.execute("select job_id from faultline.claim('later', 'intruder/1', 10)").fetchall()
    stage.verdict.expect("attempts with another end than foreseen", [a for a in ATTEMPTS if refused[a] != ATTEMPTS[a]], [])
    stage.verdict.expect("leases that the intruder could reap", taken, [])
    stage.verdict.expect("jobs that the intruder could get before their time", granted, [])
    after = stage.app.job(lease.job_id)
    stage.verdict.holds("the lease that was held is as it was, until", after.lease_expires_at, holds=after == before)


@contextlib.contextmanager
def _intruder(stage: Stage) -> Iterator[psycopg.Connection]:
    """A session of a role that is granted a worker's verbs and nothing else."""
    name, password = f"faultline_drill_{secrets.token_hex(6)}", secrets.token_hex(16)
    role = sql.Identifier(name)
    with stage.app.database.connection() as admin:
        try:
            admin.execute(sql.SQL("create role {} login password {} in role faultline_worker").format(role, password))
        except psycopg.Error as error:
            raise CannotPlay(f"a role to break in with cannot be made here: {error}") from error
        try:
            with psycopg.connect(make_conninfo(stage.dsn, user=name, password=password), autocommit=True) as session:
                try:
                    yield session
                finally:
                    session.execute("discard temp")  # a role that owns something cannot be dropped
        except psycopg.OperationalError as error:
            raise CannotPlay(f"a new role cannot log in here: {error}") from error
        finally:
            admin.execute(sql.SQL("drop role {}").format(role))


def _is_refused(session: psycopg.Connection, attempt: str) -> bool:
    try:
        session.execute(attempt.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


DRILLS = (Drill("clock-skew", "clocks that are hours wrong, and a role that tries to move the database's own", clock_skew),)
