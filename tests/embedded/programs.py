"""Real programs around a real embedded server. The promise: one that a test forgot is killed at the end of its `with`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest

from faultline import embedded
from faultline.embedded.postmaster import command_of

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(embedded.__file__).parents[2]
FAST = {"fsync": "off", "shared_buffers": "16MB"}

# Joins, says so, and leaves when its input ends: a well-behaved user that can be killed at any time.
USER = """
import json, sys
from pathlib import Path
from faultline import embedded
from faultline.embedded.postmaster import command_of
server = embedded.join(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
status = embedded.status(Path(sys.argv[1]))
print(json.dumps({"dsn": server.dsn, "pid": status.pid, "data": str(status.data)}), flush=True)
sys.stdin.read()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give the server to another user")


def eventually(condition: Callable[[], Any], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def left_running(folder: Path) -> list[str]:
    """Every living process whose command line speaks of the folder: its keeper, its server, its initdb."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # Our own programs name the folder too; they are not what is looked for.
        if str(folder) in command and ("run_keeper" in command or "postgres" in command or "initdb" in command):
            found.append(f"{process.name} {command}")
    return found


def keeper_pid(folder: Path) -> int:
    return int((folder / "keeper.lock").read_text())


def kill(pid: int) -> None:
    """End it by kill -9, and wait until it has come to pass: the signal is only sent when os.kill returns."""
    assert pid > 1
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: command_of(pid) is None)


def kill_keeper(folder: Path) -> None:
    kill(keeper_pid(folder))


def environment() -> dict[str, str]:
    """Ours, with this very source in front."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])}


class Program:
    """Another process that uses the server of the folder."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder), json.dumps(FAST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._said: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> dict[str, Any]:
        """What it printed once it had joined."""
        if self._said is None:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            assert line, self._process.communicate()[1]
            self._said = json.loads(line)
        return self._said

    def ask_to_leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def leave(self) -> None:
        self.said()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        assert self._process.wait(30) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    """Ask the server; where there is none (yet), ask again for a while."""
    end = time.monotonic() + 15
    while True:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                answer = connection.execute(text.encode())
                return answer.fetchall() if answer.description else []
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
