"""The programs of a measurement: started in groups of their own, ended for certain, their CPU by the system's accounts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_SECONDS = 4.0


class Failed(Exception):
    """A system did not do what was asked of it, and what it said."""


class Program:
    """A process in a group of its own, with what it writes to standard error kept in a file."""

    def __init__(
        self, words: list[str], env: Mapping[str, str], log: Path, *, talks: bool = False, cwd: Path | None = None
    ) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                words,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else errors,
                stderr=errors,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-3:])[-400:]

    def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Give an order to a driver and wait for its answer."""
        stdin, stdout = self._pipe(self._process.stdin), self._pipe(self._process.stdout)
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise Failed(f"the driver ended: {self.last_words()}") from error
        return self.answer(seconds, order["do"], stdout)

    def answer(self, seconds: float, to: str, stdout: IO[bytes] | None = None) -> dict[str, Any]:
        stdout = stdout or self._pipe(self._process.stdout)
        give_up = time.monotonic() + seconds
        while True:
            # One line an order: nothing but an answer is ever waiting in the buffer.
            if not select.select([stdout], [], [], max(0.0, give_up - time.monotonic()))[0]:
                raise Failed(f"no answer to {to} within {seconds:g} s")
            line = stdout.readline()
            if not line:
                raise Failed(f"the driver ended at {to}: {self.last_words()}")
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    if "error" in found:
                        raise Failed(f"{to}: {found['error']}")
                    return found

    def kill(self) -> None:
        """SIGKILL to all of its group, as the kernel's does it that is out of memory."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM to the process, then SIGKILL to whatever is left of its group."""
        if not self.ended:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None, "only a program that talks is asked"  # noqa: S101
        return pipe


def run(words: list[str], env: Mapping[str, str], log: Path, seconds: float, cwd: Path | None = None) -> None:
    """Run a program to its end."""
    program = Program(words, env, log, cwd=cwd)
    try:
        wait_for(lambda: program.ended, seconds, f"{words[-1]} did not end within {seconds:g} s")
        if program._process.returncode != 0:  # noqa: SLF001
            raise Failed(f"{words[-1]} failed: {program.last_words()}")
    finally:
        program.stop()


def wait_for(condition: Callable[[], bool], seconds: float, otherwise: str, pause: float = 0.02) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise Failed(otherwise)
        time.sleep(pause)


def cpu_seconds(roots: Iterable[int]) -> float:
    """CPU of these processes and all below them, the ended and waited-for included."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for pid, fields in _processes():
        parents[pid] = int(fields[1])
        used[pid] = sum(int(field) for field in fields[11:15])
    wanted = set(roots)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in wanted} - wanted
        wanted |= more
        grown = bool(more)
    return sum(used.get(pid, 0) for pid in wanted) / _TICKS


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
