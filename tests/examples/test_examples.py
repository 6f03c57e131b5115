"""The examples tell the truth: each runs as a program of its own and prints what it says it shows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def run(name: str, dsn: str) -> list[str]:
    """The lines that an example prints. It must end well and complain of nothing."""
    ran = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=ROOT,
        env={**os.environ, "FAULTLINE_DSN": dsn},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return ran.stdout.splitlines()


def test_hello_prints_the_result_of_its_job(dsn: str) -> None:
    assert run("hello", dsn) == ["Hello, world!"]


def test_the_transfer_moves_the_money_once_although_the_job_is_claimed_three_times(dsn: str) -> None:
    said = run("transfer", dsn)

    assert said[:3] == [
        "before: {'ada': 100, 'grace': 0}",
        "submitted twice, jobs made: 1",
        "attempt 1, token 1: fails with both updates made",
    ]
    # The refused attempt and its successor run side by side: either may be the first to tell.
    assert sorted(said[3:5]) == [
        "attempt 2, token 2: stalled, lost its lease, and was refused",
        "attempt 2, token 3: moved 30",
    ]
    assert said[5:] == ["after: {'ada': 70, 'grace': 30}", "succeeded in attempt 2 of 5, claimed 3 times"]


def test_beat_ticks_without_a_beat_process_and_backfills_a_week(dsn: str) -> None:
    assert run("beat", dsn) == ["schedules: report, sync-eu", "reports of the last week: 7"]


def test_the_pipeline_pays_once_for_each_of_its_five_calls(dsn: str) -> None:
    said = run("pipeline", dsn)

    assert "  call 3: overloaded, not paid" in said
    assert "  call 5: the answer is lost" in said
    # A slow machine may run into the timeout more often. That costs calls, but no money.
    attempts, calls, paid = map(int, re.findall(r"\d+", said[-1]))
    assert attempts >= 3
    assert calls >= 7
    assert paid == sum(line.endswith(": paid") for line in said) == 5


@pytest.mark.long
def test_the_web_program_ships_what_is_ordered_and_stops_when_told(dsn: str) -> None:
    pytest.importorskip("fastapi", reason="the web example needs fastapi")
    pytest.importorskip("uvicorn", reason="the web example needs uvicorn")

    with serving(dsn) as web:
        ordered = fetch(f"{web.address}/orders?item=lamp", method="POST")
        ended = until_ended(f"{web.address}/jobs/{ordered['job']}")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"{web.address}/jobs/00000000-0000-0000-0000-000000000000")
        web.process.send_signal(signal.SIGTERM)
        status = web.process.wait(PATIENCE)

    assert ended == {"state": "succeeded", "attempt": 1, "result": f"parcel-{ordered['order']}", "last_error": None}
    # Having shut down, uvicorn ends by the signal that it was sent.
    assert status in (0, -signal.SIGTERM), web.log
    assert "Application shutdown complete" in web.log
    assert "ERROR" not in web.log
    assert "Traceback" not in web.log


class Web:
    """The web program under uvicorn."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""
        self.address = ""

    def read_address(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
            if found:
                self.address = found[1]
                return
        pytest.fail(f"the web program did not start:\n{self.log}")

    def read_rest(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr.read()


@contextlib.contextmanager
def serving(dsn: str) -> Iterator[Web]:
    """Start the web program, and end it whatever happens. Its log is complete once this is left."""
    # The system chooses the port, so that no two programs choose the same; the log tells which.
    command = ["uvicorn", "web:web", "--app-dir", "examples", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "FAULTLINE_DSN": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # One that hangs is ended, which also ends the reading of its log.
        overdue = threading.Timer(PATIENCE, process.kill)
        overdue.start()
        try:
            web = Web(process)
            web.read_address()
            yield web
        finally:
            overdue.cancel()
            process.kill()
        web.read_rest()


def fetch(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE) as answer:  # noqa: S310
        return json.load(answer)


def until_ended(url: str) -> Any:
    give_up_at = time.monotonic() + PATIENCE
    while True:
        job = fetch(url)
        if job["state"] not in ("queued", "running"):
            return job
        assert time.monotonic() < give_up_at, job
        time.sleep(0.02)
