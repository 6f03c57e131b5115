"""What a process that was forked must not keep of its parent: the descriptors by which others see whether the parent lives,
and the part that the parent's code plays.

A child made by `os.fork` or `multiprocessing` has a copy of every descriptor. While it lives, the server would not notice
that a killed worker's session is gone, a port would stay taken, and a pipe would not end. Programs started by exec keep
none: Python's descriptors close there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
import weakref
from typing import NoReturn, Protocol, TypeVar


class _Open(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T", bound=_Open)

#: How many forks made this process. Who remembers it from before knows whether this is still the same process.
generation = 0

_ours: weakref.WeakSet[_Open] = weakref.WeakSet()


def keep_from_forks(opened: T) -> T:
    """Close it in every process that is forked from now on, for as long as it is open here."""
    _ours.add(opened)
    return opened


def end_child(error: BaseException | None) -> NoReturn:
    """End a forked process that came back into code of its parent's, as `multiprocessing` ends its own: nothing of the
    parent's is cleaned up, but what was printed is written, and an error is shown.
    """
    status = 1
    try:
        match error:
            case None | SystemExit(code=None):
                status = 0
            case SystemExit(code=int(code)):
                status = code & 0xFF
            case SystemExit(code=code):
                sys.stderr.write(f"{code}\n")
            case _:
                traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _after_fork_in_child() -> None:
    """Put a closed wire in the place of each, so that its number is not given to another file while somebody may use it."""
    global generation  # noqa: PLW0603 - read by every job: nothing is cheaper
    generation += 1
    if not _ours:
        return
    wire, other = socket.socketpair()
    other.close()
    for opened in list(_ours):
        # Closed already, or in the middle of being opened.
        with contextlib.suppress(Exception):
            fd = opened.fileno()
            if fd >= 0:
                os.dup2(wire.fileno(), fd, inheritable=False)
    wire.close()
    _ours.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
