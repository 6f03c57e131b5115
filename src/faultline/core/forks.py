"""Keep a forked child from acting as its parent: it must neither hold the parent's descriptors nor run the parent's code.

A child made by `os.fork` or `multiprocessing` has a copy of every descriptor. While the child lives, the server would not
notice that a killed worker's session has ended, a port would stay in use, and a pipe would stay open. Programs started by
exec have none of them: Python closes its descriptors there.
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

#: How many forks led to this process. Code that has stored it can see whether this is still the same process.
generation = 0

_ours: weakref.WeakSet[_Open] = weakref.WeakSet()
#: Event loops of workers. Several workers may share one.
_loops: list[asyncio.AbstractEventLoop] = []


def keep_from_forks(opened: T) -> T:
    """Close it in every process that is forked while it is open here."""
    _ours.add(opened)
    return opened


def keep_children_from(loop: asyncio.AbstractEventLoop) -> None:
    """End every process that is forked inside this loop and returns to it, until `let_children_into`."""
    _loops.append(loop)


def let_children_into(loop: asyncio.AbstractEventLoop) -> None:
    _loops.remove(loop)


def end_child(error: BaseException | None) -> NoReturn:
    """End a forked process that returned to its parent's code, as `multiprocessing` does: clean up nothing of the parent's,
    but flush the output and show an error.
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
    """Replace each descriptor by a closed socket, so that its number is not reused for another file while code may use it.

    A child that was forked in a task which a job started returns to its copy of the loop only: it ends there.
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
        # Already closed, or not open yet.
        with contextlib.suppress(Exception):
            fd = opened.fileno()
            if fd >= 0:
                os.dup2(wire.fileno(), fd, inheritable=False)
    wire.close()
    _ours.clear()


def _end_in(loop: asyncio.AbstractEventLoop) -> None:
    """End the child before it runs anything that is due in the parent: it would happen twice. And before its loop polls:
    parent and child share the descriptors (epoll, io_uring, the wake-ups of threads). An event that the child reads there is
    lost to the parent, whose loop then waits forever, or finds its state inconsistent and aborts the process.
    """
    branch = asyncio.current_task(loop)

    def end() -> None:
        error: BaseException | None = RuntimeError("a forked process cannot wait in the event loop of its parent")
        if branch is None or branch.done():
            error = None if branch is None or branch.cancelled() else branch.exception()
        end_child(error)

    handle = loop.call_soon(end)
    # Only the garbage collector can reach uvloop's list of due callbacks.
    for due in (getattr(loop, "_ready", None), *gc.get_referents(loop)):
        if isinstance(due, deque) and due and due[-1] is handle:
            due.rotate(1)
            break
    if branch is not None:
        _end_with_step(loop, branch, end)


def _end_with_step(loop: asyncio.AbstractEventLoop, branch: asyncio.Task[Any], end: Callable[[], None]) -> None:
    """When its coroutine has ended, a task first asks its loop to call its callbacks: end the child then."""
    coroutine, call_soon = branch.get_coro(), loop.call_soon

    def call_soon_in_child(*args: Any, **options: Any) -> asyncio.Handle:
        if not getattr(coroutine, "cr_running", not branch.done()):
            end()
        return call_soon(*args, **options)

    branch.add_done_callback(lambda _: None)  # there may be nobody else
    vars(loop)["call_soon"] = call_soon_in_child


os.register_at_fork(after_in_child=_after_fork_in_child)
