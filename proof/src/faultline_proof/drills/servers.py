"""The server fails: killed as a whole under load, session by session again and again, or its disk is full."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from faultline.core.errors import DatabaseUnavailable
from faultline.core.model import Submission
from faultline.store.install import migrate
from faultline.store.reads import views
from faultline_proof.drill import Drill
from faultline_proof.postgres import Postgres
from faultline_proof.submitter import CREDITS, Submitter
from faultline_proof.verdict import CannotPlay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from faultline_proof.stage import Stage

#: Jobs done before the server is killed, and submitted after it is back.
WARM_UP, AFTERWARDS = 200, 100

STORM_KILLS, STORM_SEED = 100, 4711

DISK_BYTES = 48 * 1024**2
BLOBS, BLOB_BYTES = 50, 8000


def database_restart(stage: Stage) -> None:
    server = stage.keep(Postgres(stage.folder / "server"))
    stage.move_to(server.dsn)
    stage.make_effects()
    stage.verdict.expect("fsync, without which a crash may lose what was acknowledged", stage.value("show fsync"), "on")
    workers = [stage.worker("A"), stage.worker("B")]
    with Submitter(server.dsn, stage.host()) as client:
        stage.wait_for(lambda: stage.workers() == len(workers), "both workers are up")
        stage.wait_for(lambda: _succeeded(stage) >= WARM_UP, "they are in full swing")
        server.kill()
        stage.note("server_killed", signal="SIGKILL", acknowledged=len(client.acknowledged))
        server.start()
        stage.move_to(server.dsn)
        done, known = _succeeded(stage), len(client.acknowledged)
        stage.note("server_restarted", succeeded=done)
        stage.faults_are_over()
        stage.wait_for(lambda: len(client.acknowledged) >= known + AFTERWARDS, "the client goes on by itself")
    _wait_until_drained(stage)
    if any(worker.saw("listener_lost") for worker in workers):
        stage.verdict.took_effect("SIGKILL of the whole server under load")
    stage.verdict.holds("jobs done after the restart", _succeeded(stage) - done, holds=_succeeded(stage) > done)
    stage.verdict.expect("workers that are still the same processes", [worker.alive for worker in workers], [True, True])
    expect_all_done_once(stage, client.acknowledged)
    stage.expect_sound()


def backend_kill_storm(stage: Stage) -> None:
    stage.make_effects()
    dsn = make_conninfo(stage.dsn, application_name="drilled")
    for name in ("A", "B"):
        stage.worker(name, dsn=dsn)
    chance = random.Random(STORM_SEED)  # noqa: S311 - the same choices every time
    kills = 0
    with Submitter(stage.dsn, stage.host()) as client:
        stage.wait_for(lambda: _succeeded(stage) > 0, "the workers are at work")
        while kills < STORM_KILLS:
            sessions = _sessions(stage)
            # Every other time one that is in the middle of something, if there is any: most are idle at any moment.
            busy = [session for session in sessions if session[1] != "idle"] if chance.getrandbits(1) else []
            pid, state = chance.choice(busy or sessions or [(None, None)])
            if pid is not None and stage.value("select pg_terminate_backend(%s)", pid):
                kills += 1
                stage.verdict.took_effect(f"end of a worker's session that was {state}")
                stage.wait_for(partial(_is_gone, stage, pid), "the session is gone")
        stage.note("storm_over", kills=kills, succeeded=_succeeded(stage))
        stage.faults_are_over()
    _wait_until_drained(stage)
    expect_all_done_once(stage, client.acknowledged)
    stage.expect_sound()


def disk_full(stage: Stage) -> None:
    disk = stage.keep(_small_disk())
    server = stage.keep(Postgres(stage.folder / "server", settings={"fsync": "off"}))
    stage.move_to(_database_on(disk, server))
    stage.app.enqueue_many([Submission("blob", f'{{"size": {BLOB_BYTES}}}')] * BLOBS)
    with stage.barrier("the disk is full"):
        worker = stage.worker("A", queues=[f"default={BLOBS}"], faults=["before_complete_sent=barrier:the disk is full"])
        stage.wait_for_arrival("the disk is full")
        ballast = _fill(disk)
        stage.note("disk_filled", bytes=ballast.stat().st_size)
    stage.wait_for(lambda: worker.saw("completion_delayed"), "the worker cannot write its completions")
    told = _refused_submission(stage)
    if "No space left" in told:
        stage.verdict.took_effect("no space left on the server's disk")
    delayed = [event["error"] for event in worker.events() if event["event"] == "completion_delayed"]
    stage.verdict.holds("what the client was told", told, holds="No space left on device" in told)
    stage.verdict.holds("what the worker was told", delayed[0], holds="No space left on device" in delayed[0])
    stage.verdict.expect("completions written meanwhile", _succeeded(stage), 0)
    stage.verdict.expect("the worker lives", worker.alive, wanted=True)
    ballast.unlink()
    stage.note("disk_freed")
    stage.faults_are_over()
    stage.app.enqueue_many([Submission("nothing")])
    _wait_until_drained(stage)
    stage.verdict.expect("jobs acknowledged and in the ledger", _succeeded(stage), BLOBS + 1)
    reruns = stage.value("select count(*) from faultline.ledger where fencing_token > 1")
    stage.verdict.expect("jobs run again because of it", reruns, 0)
    stage.expect_sound()


def expect_all_done_once(stage: Stage, acknowledged: list[UUID]) -> None:
    """Whatever a client was told is in has been done, with its effect, once."""
    in_ledger = {
        job_id: args["account"]
        for job_id, args in stage.rows("select job_id, args from faultline.ledger where task = any(%s)", list(CREDITS))
    }
    missing = [str(job_id) for job_id in acknowledged if job_id not in in_ledger]
    stage.verdict.holds("jobs acknowledged", len(acknowledged), holds=len(acknowledged) > 0)
    stage.verdict.expect("acknowledged and not done", missing, [])
    effects = Counter(account for account, _ in stage.effects())
    wrong = (effects - Counter(in_ledger.values())) + (Counter(in_ledger.values()) - effects)
    stage.verdict.expect("accounts with an effect too many or too few", sorted(wrong), [])


def _succeeded(stage: Stage) -> int:
    return stage.app.database.run(views.counts())["succeeded"]


def _wait_until_drained(stage: Stage) -> None:
    stage.wait_for(lambda: stage.app.database.run(views.is_drained("default")), "all jobs are done")


def _is_gone(stage: Stage, pid: int) -> bool:
    return pid not in dict(_sessions(stage))


def _sessions(stage: Stage) -> list[tuple[int, str]]:
    return stage.rows(
        "select pid, state from pg_stat_activity where application_name = 'drilled' and datname = current_database()"
        " and state is not null order by pid"
    )


@contextlib.contextmanager
def _small_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="faultline-disk-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0755", "tmpfs", folder]
        try:
            mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise CannotPlay("there is no command `mount` to make a small disk with") from None
        if mounted.returncode != 0:
            raise CannotPlay(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def _database_on(disk: Path, server: Postgres) -> str:
    """A database whose tables alone lie on the small disk: with a full disk for its log PostgreSQL stops by itself."""
    tables = disk / "tables"
    tables.mkdir(mode=0o700)
    os.chown(tables, server.account.uid, server.account.gid)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create tablespace small location '{tables}'".encode())
        connection.execute("create database crowded template template0 tablespace small")
    dsn = make_conninfo(server.dsn, dbname="crowded")
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.migrate(connection)
    return dsn


def _fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return ballast


def _refused_submission(stage: Stage) -> str:
    try:
        stage.app.enqueue_many([Submission("nothing", f'{{"unused": "{os.urandom(BLOB_BYTES).hex()}"}}')] * BLOBS)
    except DatabaseUnavailable as error:
        return str(error)
    return "that all is well"


DRILLS = (
    Drill("database-restart", "the whole server is killed with SIGKILL under load and started again", database_restart),
    Drill("backend-kill-storm", "sessions of the workers are ended at random, again and again", backend_kill_storm),
    Drill("disk-full", "the server's disk is full for a while", disk_full),
)
