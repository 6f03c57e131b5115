"""`faultline worker` before and beside its work: what it waits for, what it refuses, what it leaves behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import environment, faultline
from tests.waiting import free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@contextlib.contextmanager
def worker(dsn: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "faultline", "worker", "tests.worker.jobs:app", *words]
    environ = environment(FAULTLINE_DSN=dsn, TMPDIR=str(folder))
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()  # its children stop by themselves
        process.wait()


def started(folder: Path) -> int:
    return (folder / "log").read_text().count('"worker_started"')


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["one process", "several"])
def test_a_database_that_is_down_is_waited_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    nobody_there = f"postgresql://ada@127.0.0.1:{free_port()}/jobs"

    with worker(nobody_there, tmp_path, *words) as process:
        until(lambda: (tmp_path / "log").read_text().count('"database_unavailable"') > 1 or process.poll() is not None)

        assert process.poll() is None, (tmp_path / "log").read_text()


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["one process", "several"])
@pytest.mark.parametrize(
    ("option", "given"), [("--grace", "nan"), ("--loop-timeout", "-1"), ("--abandoned-threads-max", "x")]
)
def test_a_limit_that_makes_no_sense_is_refused_before_anything_starts(
    dsn: str, option: str, given: str, words: tuple[str, ...]
) -> None:
    asked = faultline("worker", "tests.worker.jobs:app", option, given, *words, FAULTLINE_DSN=dsn)

    assert asked.returncode == 2
    assert asked.stderr.startswith(f"faultline: {option} is {given!r}; it must be a ")


@pytest.mark.long
def test_what_a_killed_parent_left_is_removed_by_the_next_one_and_what_a_living_one_has_is_not(
    dsn: str, tmp_path: Path
) -> None:
    def several() -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return worker(dsn, tmp_path, "--processes", "2", "--metrics-port", str(free_port()))

    with several():
        until(lambda: started(tmp_path) == 2)
        killed = left(tmp_path)
    with several():
        until(lambda: started(tmp_path) == 4)
        alive = left(tmp_path)
        with several() as last:
            until(lambda: started(tmp_path) == 6)
            both = left(tmp_path)
            last.send_signal(signal.SIGTERM)
            last.wait(PATIENCE)

        assert left(tmp_path) == alive
    assert len(killed) == len(alive) == 1
    assert len(both) == 2
    assert alive < both
    assert not killed & alive


def test_processes_that_report_no_metrics_need_no_folder(dsn: str, tmp_path: Path) -> None:
    with worker(dsn, tmp_path, "--processes", "2", "--health-port", str(free_port())):
        until(lambda: started(tmp_path) == 2)

        assert left(tmp_path) == set()
