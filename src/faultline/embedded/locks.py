"""Locks on files, held by the kernel. The promise: a lock never outlives the process that holds it, however it died.

Three locks lie in a folder of an embedded server:

* `users.lock`   shared: held by every program that uses the server. Exclusive: nobody uses it (any more).
* `keeper.lock`  exclusive: held by the keeper all its life. Its text is the keeper's pid.
* `start.lock`   exclusive: held while a server is started or stopped, and while a user leaves.

They are always asked for in the order users, start, keeper, or without waiting: so no two programs wait for each other.

This module and `postmaster` are read by the keeper, which starts fast because nothing but the standard library is
imported: keep it so.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

_PAUSE = 0.01


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again; False when the time is over and the answer still is no."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE)
    return True


def open_lock(path: Path) -> int:
    # O_CLOEXEC: a PostgreSQL or any other child that inherited the lock would hold it after our death.
    # O_NOFOLLOW: root may work in a folder of somebody else, who must not lead it to another file.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def try_lock(lock: int, mode: int) -> bool:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(lock: int, path: Path) -> bool:
    """Whether the open lock still is the file of that name: a lock on a removed file keeps nobody out."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(lock), there)


def acquire(path: Path, mode: int, seconds: float) -> int:
    """The open file, locked; closing it gives the lock back. TimeoutError when others hold it all that time."""
    end = time.monotonic() + seconds
    while True:
        lock = open_lock(path)
        try:
            got = wait_until(lambda: try_lock(lock, mode), end - time.monotonic())  # noqa: B023 - called at once
            if got and same_file(lock, path):
                kept, lock = lock, -1
                return kept
        finally:
            if lock >= 0:
                os.close(lock)
        if not got:
            raise TimeoutError(f"{path} is held by another process, and was for {seconds:.0f} s")


class Held:
    """A lock given back at the end of a `with`."""

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock exclusively. For an instant this holds it shared: who takes it has to try again."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        return try_lock(lock, SHARED)
    finally:
        os.close(lock)
