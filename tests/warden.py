"""End what a test run has started, however the run itself ended. The promise: nothing outlives a killed test.

A test's processes have sessions of their own, some are frozen, and some do without a database for as long as it takes:
none of them ends because pytest was killed. So every run marks its environment, which its processes inherit, and starts
a warden that outlives it. `python warden.py PID MARK SHARED` waits for the end of that process, then kills what is marked.

The servers below SHARED are spared: they end when their last user does, and that may be another run in this checkout.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "FAULTLINE_TEST_RUN"
_PROC = Path("/proc")
_PAUSE = 0.2
_QUIET_ROUNDS = 5  # what is being started at this moment is seen by one of the next looks
_GIVE_UP_SECONDS = 60.0


def watch_over_this_process(shared: Path) -> None:
    """Mark this process's environment, and start a warden for it. Only Linux tells whose processes are whose."""
    if not hasattr(os, "pidfd_open") or not (_PROC / "self" / "environ").exists():
        return
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = secrets.token_hex(8)
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[MARK], str(shared)],
        env=unmarked,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # it is not waited for: it ends after us


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    frozen: bool
    command: str
    marked: bool


def processes(mark: bytes) -> dict[int, Process]:
    found = {}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            if state not in "ZX":
                found[int(folder.name)] = Process(int(folder.name), int(parent), state == "T", command, marked)
    return found


def sweep(mark: bytes, shared: str) -> int:
    """Kill what is marked, and its children: a session of PostgreSQL writes its title over its environment."""
    there = processes(mark)

    def is_ours(process: Process | None) -> bool:
        return process is not None and (process.marked or is_ours(there.get(process.parent)))

    def is_spared(process: Process | None) -> bool:
        return process is not None and (f"{shared}/" in process.command or is_spared(there.get(process.parent)))

    killed = 0
    for process in filter(is_ours, there.values()):
        spared = is_spared(process)
        if spared and not process.frozen:
            continue
        with suppress(ProcessLookupError):
            # A frozen session keeps its server from stopping.
            os.kill(process.pid, signal.SIGCONT if spared else signal.SIGKILL)
            killed += 1
    return killed


def main(pid: int, mark: str, shared: str) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    quiet, give_up = 0, time.monotonic() + _GIVE_UP_SECONDS
    while quiet < _QUIET_ROUNDS and time.monotonic() < give_up:
        quiet = 0 if sweep(f"{MARK}={mark}".encode(), shared) else quiet + 1
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
