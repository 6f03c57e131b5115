"""An upgrade as it happens in production: old programs run, the new build migrates, old and new run side by side."""

from __future__ import annotations

import collections
import contextlib
import signal
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline.store.database import run_on
from faultline.store.install import migrate
from faultline.store.reads import invariants
from tests.upgrades.builds import Build
from tests.versions import note_another_text

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

PATIENCE = 180.0
#: Of each kind of job, how the acknowledged ones end.
ENDS = {
    "plain": "succeeded", "pay": "succeeded", "pay_blocking": "succeeded", "stepped": "succeeded", "flaky": "succeeded",
    "long": "succeeded", "endless": "cancelled",
}  # fmt: skip
EFFECTS = {"pay", "pay_blocking", "stepped"}


class Stage:
    """Both builds on one database, and what their producers were promised."""

    def __init__(self, dsn: str, folder: Path, previous: Path) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.previous, self.this = Build(dsn, previous), Build(dsn)
        self.processes: list[subprocess.Popen[str]] = []
        self.killed: list[subprocess.Popen[str]] = []
        self._folder = folder
        self._outputs: list[Path] = []

    def workers(self, build: Build, number: int) -> list[subprocess.Popen[str]]:
        """They have begun when this returns."""
        started = []
        for _ in range(number):
            with self._log().open("w") as log:
                started.append(self._started(build.worker(log)))
        self.until(lambda: self.count("select count(*) from faultline.workers") == self._workers_alive())
        return started

    def _workers_alive(self) -> int:
        return sum("worker" in str(process.args) and process not in self.killed for process in self.processes)

    def producer(self, build: Build, kind: str = "alone") -> subprocess.Popen[str]:
        output = self._folder / f"acknowledged-{len(self._outputs)}"
        self._outputs.append(output)
        with output.open("w") as acknowledged, self._log().open("w") as log:
            return self._started(build.producer(output.name, kind, acknowledged, log))

    def acknowledged(self) -> dict[str, str]:
        """Job → task."""
        lines = [line for output in self._outputs for line in output.read_text().splitlines()]
        return {job_id: task for task, job_id in map(str.split, lines)}

    def count(self, query: str) -> int:
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def finished(self) -> int:
        return self.count("select count(*) from faultline.ledger")

    def goes_on(self, jobs: int) -> None:
        """That many further jobs are done."""
        goal = self.finished() + jobs
        self.until(lambda: self.finished() >= goal)

    def submits(self, jobs: int) -> None:
        """That many further jobs are there."""
        goal = self.count("select count(*) from faultline.open_jobs") + jobs
        self.until(lambda: self.count("select count(*) from faultline.open_jobs") >= goal)

    def until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert not any(process.poll() for process in self.processes if process not in self.killed), self.logs()
            assert time.monotonic() < give_up, f"it did not happen in time; the logs:\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(log.read_text()[-3000:] for log in sorted(self._folder.glob("log-*")))

    def _log(self) -> Path:
        return self._folder / f"log-{len(self.processes)}"

    def _started(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.processes.append(process)
        return process


@pytest.fixture
def stage(empty_dsn: str, tmp_path: Path, previous: Path) -> Iterator[Stage]:
    made = Stage(empty_dsn, tmp_path, previous)
    made.connection.execute("create table orders (job_id uuid not null)")
    with contextlib.closing(made.connection):
        try:
            yield made
        finally:
            for process in made.processes:
                process.kill()
                process.communicate()


def end(process: subprocess.Popen[str], name: signal.Signals) -> None:
    process.send_signal(name)
    process.wait(PATIENCE)


def hang_up(producer: subprocess.Popen[str], stage: Stage) -> None:
    assert producer.stdin is not None
    producer.stdin.close()
    assert producer.wait(PATIENCE) == 0, stage.logs()


def everything(connection: psycopg.Connection) -> list[tuple[object, ...]]:
    """The functions and triggers, by identity and text."""
    return connection.execute(
        "select oid, proname::text, prosrc from pg_proc where pronamespace = 'faultline'::regnamespace union all"
        " select t.oid, t.tgname::text, pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'faultline'::regnamespace order by 2, 1"
    ).fetchall()


def test_the_previous_build_works_on_while_and_after_this_one_migrates(stage: Stage) -> None:
    assert str(stage.previous.folder) in stage.previous.run("-c", "import faultline; print(faultline.__file__)")
    stage.previous.run("-m", "faultline", "migrate")
    old = stage.workers(stage.previous, 2)
    producers = [stage.producer(stage.previous)]
    stage.goes_on(60)

    note_another_text(stage.connection)  # while this build plays the previous one, it has something to apply
    assert "migrated to protocol" in stage.this.run("-m", "faultline", "migrate")
    for _ in range(4):  # each replaces all definitions under load
        note_another_text(stage.connection)
        assert migrate.migrate(stage.connection) == ["definitions"]
        stage.goes_on(15)

    producers.append(stage.producer(stage.this))
    new = stage.workers(stage.this, 2)
    stage.goes_on(60)
    before = everything(stage.connection)
    assert "up to date" in stage.previous.run("-m", "faultline", "migrate")
    assert everything(stage.connection) == before
    old += stage.workers(stage.previous, 1)
    for worker in (old.pop(0), new.pop(0)):
        stage.killed.append(worker)
        end(worker, signal.SIGKILL)
    stage.goes_on(60)

    for producer in producers:
        hang_up(producer, stage)
    stage.until(lambda: stage.count("select count(*) from faultline.open_jobs where state in ('queued', 'running')") == 0)
    judge(stage)
    for worker in (*old, *new):
        end(worker, signal.SIGTERM)
        assert worker.returncode == 0, stage.logs()


def test_nobody_of_many_who_submit_at_that_moment_notices_the_migration(stage: Stage) -> None:
    """Each waits in the middle of a call, in the previous build's text, while the tables are locked."""
    stage.previous.run("-m", "faultline", "migrate")
    crowd = stage.producer(stage.previous, "crowd")
    stage.submits(200)

    note_another_text(stage.connection)
    assert "migrated to protocol" in stage.this.run("-m", "faultline", "migrate")
    stage.submits(200)
    for _ in range(3):  # from now on it is this build's text
        note_another_text(stage.connection)
        assert migrate.migrate(stage.connection) == ["definitions"]
        stage.submits(100)

    hang_up(crowd, stage)
    states: dict[str, str] = dict(stage.connection.execute("select id::text, state from faultline.jobs").fetchall())
    assert set(stage.acknowledged()) <= states.keys()


def judge(stage: Stage) -> None:
    """Nothing is lost, nothing is doubled, and nothing failed that should not."""
    jobs = stage.acknowledged()
    states: dict[str, str] = dict(stage.connection.execute("select id::text, state from faultline.jobs").fetchall())
    assert {job_id: states.get(job_id) for job_id in jobs} == {job_id: ENDS[task] for job_id, task in jobs.items()}
    assert collections.Counter(jobs.values()).keys() == ENDS.keys()
    orders = collections.Counter(row[0] for row in stage.connection.execute("select job_id::text from orders").fetchall())
    paid = stage.connection.execute(
        "select id::text from faultline.jobs where task = any(%s) and state = 'succeeded'", (sorted(EFFECTS),)
    ).fetchall()
    assert orders == collections.Counter(row[0] for row in paid)

    failed = stage.connection.execute(
        "select j.task, e.event, e.detail from faultline.journal e join faultline.jobs j on j.id = e.job_id"
        " where (e.event = 'attempt_failed' and j.task <> 'flaky')"
        " or (e.event = 'stale_write_blocked' and j.task <> 'endless')"
    ).fetchall()
    assert failed == [], stage.logs()
    assert invariants.violations(lambda statement: run_on(stage.connection, statement)) == []
