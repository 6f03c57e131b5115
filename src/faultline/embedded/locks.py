"""File locks, held by the kernel. The promise: a lock ends with the process that holds it, however that dies.

The folder of an embedded server has three locks:

* `users.lock`   shared: held by every program that uses the server. Exclusive: nobody uses it.
* `keeper.lock`  exclusive: held by the keeper all its life. Its text is the keeper's pid.
* `start.lock`   exclusive: held while a server is started or stopped, and while a user leaves.

Programs acquire them in the order users, start, keeper, or without waiting, so they cannot deadlock.

The keeper imports this module and `postmaster`. It must start fast, so both import only the standard library.
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
    """Poll a condition. False: it was not true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE)
    return True


def open_lock(path: Path) -> int:
    # O_CLOEXEC: a child that inherited the lock, such as PostgreSQL, would hold it after this process dies.
    # O_NOFOLLOW: root may work in another user's folder, who must not redirect it to another file.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def try_lock(lock: int, mode: int) -> bool:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(lock: int, path: Path) -> bool:
    """Whether the open lock is still the file of that name: a lock on a removed file excludes nobody."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(lock), there)


def acquire(path: Path, mode: int, seconds: float) -> int:
    """The open file, locked; closing it releases the lock. Raises TimeoutError if others hold it all that time."""
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
    """A lock that is released at the end of a `with` block."""

    def __init__(self, lock: int) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock exclusively. This holds it shared for an instant, so others must try more than once."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        return try_lock(lock, SHARED)
    finally:
        os.close(lock)
