"""A soak in miniature, and that its judge would notice: a soak that cannot fail is ten minutes of warm air."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4
from xml.etree import ElementTree as ET

import pytest

from faultline import embedded
from faultline.proof.soak import tasks
from faultline.proof.soak.judge import DUPLICATED, LOST, judge
from faultline.proof.soak.producer import Record
from faultline.proof.soak.trouble import KINDS
from faultline.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline.proof.drill import Check
    from tests.driver import Driver

PATIENCE = 120.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "faultline", "soak", *words]


def environment(folder: Path) -> dict[str, str]:
    """The soak makes its folder in the system's folder for temporary files: one that can be looked through afterwards."""
    return {**os.environ, "TMPDIR": str(folder)}


def test_nothing_is_lost_or_done_twice_under_every_kind_of_fault(tmp_path: Path) -> None:
    as_json, as_page, temporary = tmp_path / "soak.json", tmp_path / "soak.html", tmp_path / "temporary"
    temporary.mkdir()
    words = ["--minutes", "0.14", "--workers", "2", "--json", str(as_json), "--html", str(as_page)]

    ran = subprocess.run(
        command(*words), capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment(temporary)
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("soak: passed")
    report = json.loads(as_json.read_text())
    assert all(report["faults"].get(kind, 0) >= 1 for kind in KINDS), report["faults"]
    assert report["acknowledged"] > 500
    assert report["recoveries"], "jobs of a killed worker were run again"
    assert sum(report["refusals"].values()) == report["stale_writes_refused"]
    page = ET.fromstring(as_page.read_text().partition("\n")[2])  # noqa: S314 - our own page
    assert page.findtext(".//span[@class='verdict held']") == "passed"
    assert "http" not in as_page.read_text().replace("http-equiv", "")
    assert list(temporary.iterdir()) == []


def test_an_interrupted_soak_leaves_no_process_behind_and_says_what_it_found(tmp_path: Path) -> None:
    with begun(tmp_path) as (process, folder):
        assert len(started_for(folder)) >= 3, "a server and two workers"

        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130, complaints
    assert said.startswith("soak: interrupted, nothing broken so far")
    assert "acknowledged jobs lost: 0" in said
    assert "Traceback" not in complaints
    assert started_for(folder) == []
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_soak_that_was_killed(tmp_path: Path) -> None:
    with begun(tmp_path) as (process, folder):
        process.kill()

        until(lambda: not started_for(folder))
        embedded.destroy(folder)


@contextlib.contextmanager
def begun(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A soak that has told how far it has come, so that all its processes are started, and its folder."""
    process = subprocess.Popen(
        command("--minutes", "5", "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(temporary),
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("0:00 of 5:00  acknowledged")
        (folder,) = temporary.iterdir()
        yield process, folder
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def started_for(folder: Path) -> list[str]:
    """The command lines of all living processes of one soak: its workers and its server name its folder, or its place."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if folder.name[:24] in words:
            found.append(words)
    return found


def until(condition: Callable[[], Any]) -> Any:
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


class Scene:
    """A few jobs, some of them done, and a record of what the producer was told."""

    def __init__(self, queue: Driver, dsn: str) -> None:
        self.queue = queue
        self.record = Record()
        self._database = Database(dsn)
        queue.connection.execute(tasks.EFFECTS.encode())

    def add(self, number: int, task: str = "nothing", *, done: bool = True, effects: int = 0) -> UUID:
        job_id = self.queue.enqueue(task, {"n": number})
        self.record.acknowledged[number] = job_id
        if done:
            lease = self.queue.claim_one()
            for _ in range(effects):
                self.queue.connection.execute("insert into soak_effects values (%s, %s)", (number, lease.fencing_token))
            self.queue.complete(lease)
        return job_id

    def broken(self, *, over: bool = True) -> dict[str, object]:
        checks: list[Check] = judge(self._database.run, self.record, over=over)
        return {check.claim: check.found for check in checks if not check.holds}

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def scene(queue: Driver, dsn: str) -> Iterator[Scene]:
    made = Scene(queue, dsn)
    yield made
    made.close()


def test_the_judge_is_content_with_what_was_promised(scene: Scene) -> None:
    scene.add(1)
    scene.add(2, "effect", effects=1)

    assert scene.broken() == {}


def test_the_judge_misses_what_was_acknowledged_and_is_nowhere(scene: Scene) -> None:
    scene.add(1)
    scene.record.acknowledged[7] = uuid4()

    assert scene.broken() == scene.broken(over=False) == {LOST: "1 (7)"}


def test_the_judge_misses_what_is_still_open_when_all_is_said_to_be_over(scene: Scene) -> None:
    scene.add(1, done=False)

    assert scene.broken() == {LOST: "1 (1)"}
    assert scene.broken(over=False) == {}


def test_the_judge_misses_the_effect_of_a_job_that_is_done(scene: Scene) -> None:
    scene.add(1, "effect", effects=0)

    assert scene.broken() == {LOST: "1 (1)"}


def test_the_judge_sees_two_jobs_where_one_was_submitted(scene: Scene) -> None:
    scene.add(1)
    scene.add(1)

    assert DUPLICATED in scene.broken()


def test_the_judge_sees_an_effect_that_happened_twice(scene: Scene) -> None:
    scene.add(1, "effect", effects=2)

    assert scene.broken() == {DUPLICATED: "1 (1)"}


def test_the_judge_sees_an_effect_of_a_job_that_is_not_done(scene: Scene) -> None:
    scene.add(1)
    scene.queue.connection.execute("insert into soak_effects values (5, 1)")

    assert scene.broken() == {"effects of jobs that are not done, or of a stale token": "1 (5)"}


def test_the_judge_sees_what_was_said_not_to_be_there(scene: Scene) -> None:
    scene.add(1)
    scene.record.absent.append(1)

    assert scene.broken() == {"jobs that were rolled back, or not there when asked for, and are there": "1 (1)"}


def test_the_judge_sees_a_result_that_is_not_that_of_the_steps(scene: Scene) -> None:
    job_id = scene.add(1, "walk")  # done without a step

    assert scene.broken() == {"jobs whose result differs from their steps": f"1 ({job_id})"}
