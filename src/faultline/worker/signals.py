"""Signals of a worker process: the first SIGTERM or SIGINT asks it to stop, the second ends it at once.

A process that a task forks inherits none of this. Otherwise it would survive `terminate()`, and its signals would look like
the worker's own.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.worker.base.memory_file import nameless_file

if TYPE_CHECKING:
    import asyncio

    from faultline.worker.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Taken:
    #: The file that shows the companion the signals, and the handlers before.
    file: int
    before: dict[signal.Signals, Any]


_taken: _Taken | None = None
#: The signal mask of a thread that forks. Two threads may fork at once.
_forking = threading.local()


def stop_on_signals(worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
    """Uses Python's handlers, not the loop's: they run also while a task blocks the loop, so a second signal works."""
    global _taken  # noqa: PLW0603 - handlers belong to the process
    asked = 0

    def signalled(number: int, _: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            try:
                events.emit("worker_exit", worker=worker.id, reason="second signal")
            finally:
                os._exit(128 + number)
        if not loop.is_closed():
            loop.call_soon_threadsafe(worker.stop)

    # While a task holds the interpreter, no Python handler runs. faulthandler is C: it writes to a file that the companion
    # reads, and passes the signal on.
    worker.signals = nameless_file("faultline-signals")
    _taken = taken = _Taken(worker.signals, {number: signal.getsignal(number) for number in SIGNALS})

    def take(number: signal.Signals) -> None:
        faulthandler.unregister(number)
        signal.signal(number, signalled)
        faulthandler.register(number, file=taken.file, all_threads=False, chain=True)

    def look() -> None:
        """A task may have set handlers of its own, as a server does, and left none behind."""
        if _taken is not taken:
            return
        for number in SIGNALS:
            if signal.getsignal(number) is not signalled:
                take(number)
                events.emit("signals_taken_back", worker=worker.id, signal=number.name)
        loop.call_later(_LOOK_SECONDS, look)

    for number in SIGNALS:
        take(number)
    look()


def restore_signals() -> None:
    """Set the handlers that were there before."""
    global _taken
    taken, _taken = _taken, None
    if taken is None:
        return
    for number, handler in taken.before.items():
        faulthandler.unregister(number)
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    os.close(taken.file)


def _before_fork() -> None:
    """Hold signals back until the child has its own handlers: until then it would act as the worker."""
    if _taken is not None:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    mask = _forking.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    try:
        if _taken is not None:
            restore_signals()
            # Its signals would wake the worker's event loop.
            signal.set_wakeup_fd(-1)
    finally:
        _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
