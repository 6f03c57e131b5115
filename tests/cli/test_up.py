"""Everything at once: it comes up, it works, and nothing of it outlives the command, however that ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.commands import FAULTLINE, environment, faultline
from tests.waiting import free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver

pytestmark = pytest.mark.long

PATIENCE_SECONDS = 40.0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def running(dsn: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    command = [str(FAULTLINE), "up", "--port", str(port), "--workers", "1", "--dsn", dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        children: list[int] = []
        try:
            while not (line := process.stdout.readline()).startswith("Faultline is up"):
                assert line, "it ended before it was up"
            children = children_of(process.pid)
            yield process, port
        finally:
            process.kill()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of children")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_everything_comes_up_works_and_ends_with_the_command(
    queue: Driver, running: tuple[subprocess.Popen[str], int], how: signal.Signals, code: int
) -> None:
    process, port = running
    children = children_of(process.pid)
    assert len(children) == 4
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        assert json.load(answer)["status"] == "up"
    until(lambda: queue.value("select count(*) from faultline.ledger") > 0, otherwise="no job was done")

    process.send_signal(how)

    assert process.wait(PATIENCE_SECONDS) == code
    until(lambda: all(map(is_gone, children)), otherwise="a child is left")


def test_a_port_that_is_taken_is_told_before_anything_starts(dsn: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        asked = faultline("up", "--port", str(port), "--dsn", dsn)

    assert asked.returncode == 1
    assert asked.stderr.startswith(f"faultline: port {port} is in use")


def test_a_program_on_a_leash_ends_when_it_is_let_go() -> None:
    program = "import time; print('ready', flush=True); time.sleep(60)"
    leashed = subprocess.Popen(
        [sys.executable, "-m", "faultline.cli.end_with_parent", "timeit", "-n", "1", "-r", "1", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with leashed:
        assert leashed.stdout is not None
        assert leashed.stdin is not None
        assert leashed.stdout.readline() == "ready\n"

        leashed.stdin.close()

        assert leashed.wait(PATIENCE_SECONDS) == -signal.SIGTERM
