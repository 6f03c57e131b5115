"""Tasks that harm the process that they run in, for tests. A process imports this module."""

from __future__ import annotations

import contextvars
import ctypes
import faulthandler
import gc
import importlib
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn, Self

from faultline import ContinueAsNew, Faultline

app = Faultline()
note = logging.getLogger("tests.poisoning")
inherited = contextvars.ContextVar("inherited", default="nothing")


def _leave(*_: Any) -> NoReturn:
    os._exit(9)


class Bomb:
    """What it is read as raises."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, (self.kind,)


def _explode(kind: str) -> NoReturn:
    raise getattr(__import__("builtins"), kind)("read in the worker")


class BombError(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, (self.args[0],)


class NewError(Exception):
    """Raises where it is made again."""

    def __new__(cls, *args: Any) -> Self:
        if os.environ.get("NEW_ERROR_EXITS"):
            raise SystemExit(4)
        return super().__new__(cls, *args)


@app.task(executor="process", max_attempts=1)
def bomb(kind: str) -> Any:
    return Bomb(kind)


@app.task(executor="process", max_attempts=1)
def bomb_error(kind: str) -> None:
    raise BombError(kind)


@app.task(executor="process", max_attempts=1)
def bomb_log(kind: str) -> str:
    note.warning("logged", extra={"bomb": Bomb(kind)})
    return "done"


@app.task(executor="process", max_attempts=1)
def new_error() -> None:
    raise NewError("no such order")


class OwnError(Exception):
    """Raises where its arguments or attributes are asked for."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._kind = kind

    @property
    def args(self) -> NoReturn:  # type: ignore[override]
        raise getattr(__import__("builtins"), self._kind)("asked")


@app.task(executor="process", max_attempts=1)
def raise_unusual(how: str) -> None:
    error: Exception = ValueError("too many digits", 10**5000)
    if how == "attribute":
        error = ValueError("too many digits")
        vars(error)["number"] = 10**5000
    if how == "key":
        vars(error)[(1, 2)] = 3  # type: ignore[index]
    if how in ("SystemExit", "ValueError"):
        error = OwnError(how)
    raise error


@app.task(executor="process", max_attempts=1)
def begin_anew(text: str, times: int) -> str | ContinueAsNew:
    return ContinueAsNew(text * times, 0) if times else text[:1]


@app.task(executor="process", max_attempts=1)
def replace_json() -> int:
    json.dumps = lambda *_, **__: b"bytes"  # type: ignore[assignment]
    return os.getpid()


@app.task(executor="process", max_attempts=1)
def several(kinds: list[str]) -> None:
    raise ExceptionGroup("several", [getattr(__import__("builtins"), kind)(kind) for kind in kinds])


@app.task(executor="process", max_attempts=1)
def huge(mebibytes: int, how: str) -> Any:
    text = "x" * (mebibytes * 1024 * 1024)
    if how == "raise":
        raise RuntimeError(text)
    if how == "log":
        note.warning("%s", text, extra={"more": text})
        return "done"
    return text


@app.task(executor="process", max_attempts=1)
def send_raw(mebibytes: int) -> None:
    """Write to the worker what no process of tasks writes."""
    wire = socket.socket(fileno=int(sys.orig_argv[-3]))
    wire.sendall((mebibytes * 1024 * 1024).to_bytes(8) + b"x" * 1000)
    time.sleep(60)


@app.task(executor="process", max_attempts=1)
def send_nonsense(text: str) -> None:
    wire = socket.socket(fileno=int(sys.orig_argv[-3]))
    wire.sendall(len(text.encode()).to_bytes(8) + text.encode())
    time.sleep(60)


@app.task(executor="process", max_attempts=1)
def state() -> dict[str, Any]:
    """What a job finds in its process."""
    return {
        "pid": os.getpid(),
        "cwd": os.getcwd(),  # noqa: PTH109
        "umask": _umask(),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "stdout": os.fstat(1).st_ino,
        "stream": sys.stdout is sys.__stdout__ and not getattr(sys.stdout, "closed", True),
        "environ": os.environ.get("POISONED"),
        "path": os.environ.get("PATH"),
        "timeout": socket.getdefaulttimeout(),
        "recursion": sys.getrecursionlimit(),
        "inherited": inherited.get(),
        "handler": [type(one).__name__ for one in logging.getLogger().handlers],
        "disabled": logging.root.manager.disable,
        "levels": [one.level for one in logging.getLogger().handlers],
        "filters": [len(one.filters) for one in logging.getLogger().handlers],
        "hour": time.localtime(0).tm_hour,
        "warnings": warnings.filters[0][0],
        "collected": len(gc.callbacks),
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@app.task(executor="process", max_attempts=1)
def poison(how: str) -> int:
    _POISONS[how]()
    return os.getpid()


@app.task(executor="process", max_attempts=1)
def wait(seconds: float, padding: str = "") -> int:
    """Compute meanwhile: some timers count only that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return os.getpid()


class _Exits:
    def __init__(self) -> None:
        self.itself = self  # only the garbage collector frees it

    def __del__(self) -> None:
        os._exit(9)


_kept: list[_Exits] = []


@app.task(executor="process", max_attempts=1)
def leave_a_finalizer(*, kept: bool) -> int:
    gc.disable()
    made = _Exits()
    if kept:
        _kept.append(made)
    return os.getpid()


def _note_start(file: str) -> None:
    with Path(file).open("a") as opened:
        opened.write(f"{os.getpid()}\n")


@app.task(executor="process", max_attempts=2)
def free(file: str) -> int:
    _note_start(file)
    _kept.clear()
    gc.collect()
    return os.getpid()


@app.task(executor="process", max_attempts=2, backoff=lambda _: 0)
def exit_each_time(file: str) -> None:
    _note_start(file)
    os._exit(9)


@app.task(executor="process", timeout=0.5, max_attempts=1)
def die_when_asked() -> None:
    """At the signal by which the worker asks where a task is that has timed out."""
    signal.signal(signal.SIGRTMAX, signal.SIG_DFL)
    time.sleep(60)


@app.task(executor="process", max_attempts=1)
def replace(where: str, name: str, how: str) -> int:
    """Replace a function, as a mock that is never undone."""
    module, _, kind = where.partition(":")
    found: Any = importlib.import_module(module)
    setattr(getattr(found, kind) if kind else found, name, _REPLACED[how])
    return os.getpid()


def _raises(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("replaced")


_REPLACED = {"nothing": lambda *_, **__: None, "raises": _raises, "hangs": lambda *_, **__: time.sleep(600)}


def _change() -> None:
    """Everything that can be reset."""
    os.chdir("/")
    os.umask(0o777)
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.setitimer(signal.ITIMER_REAL, 600)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.close(1)
    sys.stdout = None
    os.environ["POISONED"] = "yes"
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    logging.getLogger().handlers[0].setLevel(logging.CRITICAL)
    logging.getLogger().handlers[0].addFilter(lambda _: False)
    del os.environ["PATH"]
    socket.setdefaulttimeout(0.001)
    sys.setrecursionlimit(200)
    inherited.set("a value")
    logging.getLogger().handlers[:] = []
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("error")
    gc.callbacks.append(_leave)


def _thread(*, daemon: bool) -> None:
    def end() -> None:
        time.sleep(0.3)
        os._exit(9)

    threading.Thread(target=end, daemon=daemon).start()


def _raising_alarm() -> None:
    def late(*_: Any) -> NoReturn:
        raise KeyboardInterrupt("too late")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.05)


def _timer() -> None:
    """One that Python does not know."""
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    seconds = (ctypes.c_long * 4)(0, 0, 0, 200_000_000)  # once
    if libc.timer_create(time.CLOCK_MONOTONIC, None, ctypes.byref(timer)) or libc.timer_settime(timer, 0, seconds, None):
        raise OSError(ctypes.get_errno(), "no timer")


_POISONS = {
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.2),
    "raising alarm": _raising_alarm,
    "virtual timer": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 0.2),
    "profiling timer": lambda: signal.setitimer(signal.ITIMER_PROF, 0.2),
    "timer": _timer,
    "watchdog": lambda: faulthandler.dump_traceback_later(0.3, exit=True),
    "thread": lambda: _thread(daemon=False),
    "daemon": lambda: _thread(daemon=True),
    "child": lambda: subprocess.Popen(["/bin/sh", "-c", "sleep 0.3; kill -9 $PPID"]),
    "orphan": lambda: subprocess.run(["/bin/sh", "-c", f"(sleep 0.3; kill -9 {os.getpid()}) &"], check=True),
    "orphan of a session": lambda: subprocess.run(
        ["setsid", "/bin/sh", "-c", f"(sleep 0.3; kill -9 {os.getpid()}) &"], check=True
    ),
    "group": lambda: os.setpgid(0, 0) if os.getpgrp() != os.getpid() else os.nice(0),
    "trace": lambda: sys.settrace(lambda frame, *_: os._exit(9) if frame.f_code.co_name == "wait" else None),
    "changes": _change,
}
