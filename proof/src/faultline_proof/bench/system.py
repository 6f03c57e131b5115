"""What the operating system's accounts say: CPU and memory of a process, and of a PostgreSQL server on this machine."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used; NaN where that cannot be read."""
    times = _times(pid)
    return float("nan") if times is None else sum(times[:2]) / _TICKS


def thread_cpu_seconds(pid: int) -> float:
    """The same for a process of one thread, as a backend is: by the scheduler's account, to the nanosecond."""
    account = Path(f"/proc/{pid}/schedstat")
    try:
        return int(account.read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return cpu_seconds(pid)


def server_cpu_seconds(backend_pid: int) -> float:
    """CPU that a server has used since it was started: its postmaster, all that live under it, and all that have ended."""
    parent = _parent(backend_pid)
    if parent is None:
        return float("nan")
    own = _times(parent) or (0, 0, 0, 0)
    return (sum(own) + sum(sum((_times(child) or (0, 0))[:2]) for child in _children(parent))) / _TICKS


def family_cpu_seconds(pid: int) -> float:
    """CPU that a process has used, and those that live under it."""
    return cpu_seconds(pid) + sum(family_cpu_seconds(child) for child in _children(pid))


def memory_megabytes(pid: int) -> float:
    """What a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _fields(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _times(pid: int) -> tuple[int, int, int, int] | None:
    """User and system time, its own and that of children it has waited for, in ticks."""
    fields = _fields(pid)
    return None if fields is None else (int(fields[11]), int(fields[12]), int(fields[13]), int(fields[14]))


def _parent(pid: int) -> int | None:
    fields = _fields(pid)
    return None if fields is None else int(fields[1])


def _children(pid: int) -> list[int]:
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in processes if _parent(process) == pid]
