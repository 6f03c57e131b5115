"""Give each job of a process of tasks the same surroundings, whatever the job before it has left behind.

What can be set back is set back: Python's timers, signal handlers, the folder, limits, the environment, standard streams.
What runs by itself cannot: after a job that left a thread, a program or a timer of `timer_create` running, the process is
replaced. Otherwise an alarm or a thread of one job would end the process while it runs another, whose attempt would count.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
#: Lists what `timer_create` of C has made. Some kernels do not have it (CONFIG_CHECKPOINT_RESTORE), and no other system.
_TIMER_LIST = "/proc/self/timers"
_TIMER_LIST_BYTES_MAX = 64 * 1024
_STREAMS = ("stdin", "stdout", "stderr")
#: A signal that is on its way may raise in the midst of a reset.
_TIMES_MAX = 3


class Surroundings:
    """As they are when it is made: before the first job, with the modules of the program imported."""

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._folder = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        self._mask = os.umask(0o077)
        os.umask(self._mask)
        self._limits = {number: resource.getrlimit(number) for number in _LIMITS}
        self._identity = _identity()
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._files = {number: _kept_copy(number) for number in range(3)}
        self._streams = {name: getattr(sys, name) for name in _STREAMS}
        self._environ, self._variables = dict(os.environ), _variables()
        self._timer_list = _opened(_TIMER_LIST)
        self._timers = self._listed_timers()
        self._threads = set(sys._current_frames())  # noqa: SLF001 - also those that `threading` does not know
        self._warnings, self._collected = list(warnings.filters), list(gc.callbacks)
        self._in_python = sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), socket.getdefaulttimeout()

    def restore(self) -> str | None:
        """Why the process must be replaced; None: the next job finds everything as the first one did."""
        failed: BaseException | None = None
        for _ in range(_TIMES_MAX):
            try:
                self._restore()
                return next(self._what_goes_on(), None)
            except BaseException as error:  # noqa: BLE001 - a handler of the job may raise anything
                failed = error
        return f"it cannot be reset: {type(failed).__name__}: {failed}"

    def _restore(self) -> None:
        gc.callbacks[:] = self._collected
        # What the job dropped is freed in its own time: a `__del__` may end the process. After a short job this takes a
        # microsecond; a full collection would take longer than the job.
        gc.collect(1)
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        sys.settrace(None)
        sys.setprofile(None)
        threading.settrace(None)
        threading.setprofile(None)
        self._restore_signals()
        os.fchdir(self._folder)
        os.umask(self._mask)
        self._restore_limits()
        self._restore_files()
        if _variables() != self._variables:
            os.environ.clear()
            os.environ.update(self._environ)
            time.tzset()  # TZ may be among them
        if warnings.filters != self._warnings:
            warnings.resetwarnings()
            cast("list[Any]", warnings.filters).extend(self._warnings)
        depth, interval, collects, timeout = self._in_python
        sys.setrecursionlimit(depth)
        sys.setswitchinterval(interval)
        (gc.enable if collects else gc.disable)()
        socket.setdefaulttimeout(timeout)
        logging.disable(logging.NOTSET)

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)

    def _restore_limits(self) -> None:
        for number, limits in self._limits.items():
            if resource.getrlimit(number) != limits:
                resource.setrlimit(number, limits)
        if os.getpriority(os.PRIO_PROCESS, 0) != self._niceness:
            os.setpriority(os.PRIO_PROCESS, 0, self._niceness)
        if self._cpus is not None and os.sched_getaffinity(0) != self._cpus:
            os.sched_setaffinity(0, self._cpus)

    def _restore_files(self) -> None:
        for number, (copy, file) in self._files.items():
            if _file(number) != file:
                os.dup2(copy, number)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)

    def _what_goes_on(self) -> Iterator[str]:
        """What cannot be set back."""
        threads = sys._current_frames().keys() - self._threads  # noqa: SLF001
        if threads:
            names = sorted(one.name for one in threading.enumerate() if one.ident in threads)
            yield f"a job left threads running: {', '.join(names) or len(threads)}"
        if self._listed_timers() != self._timers:
            yield "a job left a timer of timer_create()"
        if _has_children():
            yield "a job left a child process"
        if _identity() != self._identity:
            yield "a job changed the user, the group or the session of the process"
        if any(stream is not None and stream.closed for stream in self._streams.values()):
            yield "a job closed a standard stream"

    def _listed_timers(self) -> bytes:
        return b"" if self._timer_list is None else os.pread(self._timer_list, _TIMER_LIST_BYTES_MAX, 0)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _identity() -> tuple[Any, ...]:
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getpgrp(), os.getsid(0)


def _has_children() -> bool:
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _variables() -> dict[bytes, bytes]:
    """The environment as it is stored: decoding each variable after each job would take longer than a short job."""
    return dict(getattr(os.environ, "_data", None) or os.environ)


def _kept_copy(number: int) -> tuple[int, tuple[int, int] | None]:
    """A copy of a descriptor, and which file it is."""
    file = _file(number)
    return (number if file is None else os.dup(number)), file


def _file(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino
