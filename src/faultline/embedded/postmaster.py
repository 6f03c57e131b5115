"""The PostgreSQL process of a data folder. The promise: only a live server of that very folder counts.

PostgreSQL writes its pid to `postmaster.pid`, and takes any live process with that pid for a server. After a kill -9 or a
reboot it may be a zombie or another program, so this module checks the process itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.embedded.locks import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 5432  # only part of the socket's file name: nothing listens on a network

_LINES_WITH_SOCKET = 6  # five, and the newline after the fifth
_LINES_WHEN_READY = 8
# A fast shutdown writes a checkpoint first, which may take long on a slow disk; SIGQUIT ends without one (the next start
# recovers from the WAL); after SIGKILL of the postmaster its children end by themselves.
_WAYS_TO_END = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))
_PID_FILE_BEING_WRITTEN = 2.0


@dataclass(frozen=True, slots=True)
class Postmaster:
    pid: int
    socket: str
    ready: bool


def recorded(data: Path) -> Postmaster | None:
    """What `postmaster.pid` says, true or not; None: it is missing or not complete."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").split("\n")
        pid = int(lines[0])
    except (FileNotFoundError, ValueError):
        return None
    # The server writes the lines one by one while it starts: the socket is named before it can be used.
    ready = len(lines) >= _LINES_WHEN_READY and lines[7].strip() == "ready"
    return Postmaster(pid, lines[4] if len(lines) >= _LINES_WITH_SOCKET else "", ready)


def living(data: Path) -> Postmaster | None:
    found = recorded(data)
    return found if found is not None and is_postmaster(found.pid, data) else None


def is_postmaster(pid: int, data: Path) -> bool:
    """Whether that process is alive, not a zombie, and the server of that data folder."""
    command = command_of(pid)
    return command is not None and serves(command, data)


def serves(command: str, data: Path) -> bool:
    # The keeper starts every server as `postgres -D FOLDER -c ...`. Its children change their command line, so none of them
    # is taken for the server.
    return f" -D {data} -c " in command


def command_of(pid: int) -> str | None:
    """The command line of a live process; None: there is no such process, or it is a zombie."""
    process = Path("/proc") / str(pid)
    if not Path("/proc/self/stat").exists():
        return _command_by_ps(pid)
    try:
        state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        command = os.fsdecode((process / "cmdline").read_bytes()).replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    return None if state in "ZX" else command


def _command_by_ps(pid: int) -> str | None:
    found = subprocess.run(
        ["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, command = found.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else command.strip() + " "


def remove_stale_pid_file(data: Path) -> bool:
    """Remove a `postmaster.pid` that would stop PostgreSQL from starting although no server of this folder runs.

    If no process has the pid, PostgreSQL handles it itself, and also looks for left-over sessions.
    """
    path = data / "postmaster.pid"
    found = recorded(data)
    try:
        if found is None:
            # Truncated by a full disk or a power failure: PostgreSQL would refuse an empty file forever. But a server whose
            # keeper was just killed may be writing it now.
            stale = time.time() - path.stat().st_mtime > _PID_FILE_BEING_WRITTEN
        else:
            stale = _pid_is_taken(found.pid) and not is_postmaster(found.pid, data)
        if stale:
            path.unlink()
    except FileNotFoundError:
        return False
    return stale


def remove_stale_socket(data: Path, folder: Path) -> None:
    """Remove a dead server's socket and its lock file, whose pid PostgreSQL trusts like `postmaster.pid`."""
    if living(data) is None:
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (folder / name).unlink(missing_ok=True)


def _pid_is_taken(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end(pid: int, is_alive: Callable[[], bool]) -> bool:
    """Stop the server as gently as possible. False: it is still running."""
    for how, seconds in _WAYS_TO_END:
        if not is_alive():
            return True
        with suppress(ProcessLookupError):
            os.kill(pid, how)
        if wait_until(lambda: not is_alive(), seconds):
            return True
    return False
