"""What a process that was forked must not keep of its parent: the descriptors by which others see whether the parent lives,
and the part that the parent's code plays.

A child made by `os.fork` or `multiprocessing` has a copy of every descriptor. While it lives, the server would not notice
that a killed worker's session is gone, a port would stay taken, and a pipe would not end. Programs started by exec keep
none: Python's descriptors close there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
import traceback
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class _Open(Protocol):
    def fileno(self) -> int: ...


T = TypeVar("T", bound=_Open)

#: How many forks made this process. Who remembers it from before knows whether this is still the same process.
generation = 0

_ours: weakref.WeakSet[_Open] = weakref.WeakSet()
#: Event loops of workers. Several workers may share one.
_loops: list[asyncio.AbstractEventLoop] = []


def keep_from_forks(opened: T) -> T:
    """Close it in every process that is forked from now on, for as long as it is open here."""
    _ours.add(opened)
    return opened


def keep_children_from(loop: asyncio.AbstractEventLoop) -> None:
    """End every process that is forked inside this loop and comes back into it, until `let_children_into`."""
    _loops.append(loop)


def let_children_into(loop: asyncio.AbstractEventLoop) -> None:
    _loops.remove(loop)


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
    """Put a closed wire in the place of each, so that its number is not given to another file while somebody may use it.

    The child of a branch (a task that a job started) comes back to its copy of the loop and to nobody's code: it ends there.
    """
    global generation  # noqa: PLW0603 - read by every job: nothing is cheaper
    generation += 1
    for loop in _loops:
        with contextlib.suppress(RuntimeError, TypeError):  # closed, another thread's, or one that cannot be changed
            _end_in(loop)
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


def _end_in(loop: asyncio.AbstractEventLoop) -> None:
    """Before anything runs here that is due in the parent: it would happen twice. And before the loop asks the system what
    is due: parent and child share what it asks (epoll, io_uring, the wake-ups of threads). What the child is told there is
    lost to the parent, whose loop then waits for it forever, or finds its own books wrong and aborts the process.
    """
    branch = asyncio.current_task(loop)

    def end() -> None:
        error: BaseException | None = RuntimeError("a forked process cannot wait in the event loop of its parent")
        if branch is None or branch.done():
            error = None if branch is None or branch.cancelled() else branch.exception()
        end_child(error)

    handle = loop.call_soon(end)
    # uvloop shows its list of what is due to the garbage collector alone.
    for due in (getattr(loop, "_ready", None), *gc.get_referents(loop)):
        if isinstance(due, deque) and due and due[-1] is handle:
            due.rotate(1)
            break
    if branch is not None:
        _end_with_step(loop, branch, end)


def _end_with_step(loop: asyncio.AbstractEventLoop, branch: asyncio.Task[Any], end: Callable[[], None]) -> None:
    """The first that a task does when its coroutine has ended is to have its loop call those who wait for it."""
    coroutine, call_soon = branch.get_coro(), loop.call_soon

    def call_soon_in_child(*args: Any, **options: Any) -> asyncio.Handle:
        if not getattr(coroutine, "cr_running", not branch.done()):
            end()
        return call_soon(*args, **options)

    branch.add_done_callback(lambda _: None)  # there may be nobody else
    vars(loop)["call_soon"] = call_soon_in_child


os.register_at_fork(after_in_child=_after_fork_in_child)
