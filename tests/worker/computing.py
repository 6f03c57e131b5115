"""Tasks that run in processes of their own, for tests. A process imports this module."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date  # noqa: TC003 - annotations are read when the program runs
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faultline
from faultline import Faultline, Processes, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

app = Faultline()
note = logging.getLogger("tests.computing")


@dataclass(frozen=True)
class Order:
    number: int


@app.middleware
def noted(job: Any, call: Callable[[], Any]) -> Any:
    """Wraps blocking tasks where they run."""
    found = call()
    return {**found, "noted_in": os.getpid()} if isinstance(found, dict) and "about" in found else found


@app.task(executor="process", max_attempts=3, give_up_on=ValueError, backoff=lambda _: 0)
def stamp(order: Order, days: frozenset[date]) -> tuple[Order, frozenset[date]]:
    if not days:
        raise ValueError("no days")
    return order, days


@app.task(executor="process")
def add(order: Order, more: int) -> dict[str, int]:
    return {"sum": order.number + more, "pid": os.getpid()}


@app.task(executor="process", timeout=60)
def about() -> dict[str, Any]:
    job = faultline.current_job()
    assert job is not None
    note.warning("computing %s", "this")
    told = [str(job.id), job.task, job.attempt, job.queue, job.idempotency_key, job.deadline is not None]
    return {"about": told, "pid": os.getpid()}


@app.task(executor="process", max_attempts=1)
def wrong(how: str) -> Any:
    if how == "raise":
        raise ValueError("no such order")
    if how == "retry":
        return Retry(0, error="not yet")
    if how == "exit":
        sys.exit(3)
    if how == "state":
        job = faultline.current_job()
        return job and job.state
    if how == "worker":
        return app.worker()
    return open(os.devnull)  # noqa: PTH123 - cannot be sent


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@app.task(executor="process", max_attempts=1)
def unsendable() -> None:
    raise Unsendable(1, 2)


@app.task(executor="process", max_attempts=3, give_up_on=Unsendable, backoff=lambda _: 0)
def refused() -> None:
    raise Unsendable(1, 2)


@app.task(executor="process", max_attempts=1)
def note_an_error() -> str:
    note.warning("noted %s", "here", extra={"order": Order(7), "error": Unsendable(1, 2), "items": [1, {"two": 2.0}]})
    return "done"


@app.task(executor="process", max_attempts=1)
def fork(file: str, child: str) -> str:
    """Both the process and its child return."""
    if os.fork() == 0:
        Path(child).write_text(str(os.getpid()))
        note.warning("from the child")
        while not Path(file).exists():
            time.sleep(0.02)
        return "from the child"
    return "from the parent"


@app.task(executor="process", max_attempts=1)
def die_beside_a_child(file: str) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    Path(file).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(executor="process", timeout=2, max_attempts=1)
def call_a_program(file: str) -> None:
    program = f"import os, pathlib, time\npathlib.Path({file!r}).write_text(str(os.getpid()))\ntime.sleep(600)"
    subprocess.run([sys.executable, "-c", program], check=False)


@app.task(executor="process", max_attempts=1)
def die(how: str) -> None:
    if how == "SIGSEGV":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))


@app.task(executor="process", timeout=0.5, max_attempts=1)
def hold_interpreter(file: str) -> None:
    """Hold the interpreter in one call, as a C extension that never lets go of it."""
    Path(file).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(60)


@app.task(executor="process")
def linger(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(60)


@app.task(executor="process", max_attempts=1)
def wait_for(file: str) -> str:
    Path(file).write_text(str(os.getpid()))
    while (said := Path(file).read_text()) == str(os.getpid()):
        time.sleep(0.02)
    return said


@app.task(executor=Processes(max_jobs=2))
def twice() -> int:
    return os.getpid()


@app.task(executor=Processes(max_memory=1))
def large() -> int:
    return os.getpid()


@app.task
async def beside() -> None:
    """Does not compute, in the same queue."""


@app.task(executor="process", max_attempts=1)
def die_after(file: str) -> None:
    wait_for.fn(file)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(executor="process")
def measure(text: str) -> tuple[int, int]:
    return len(text), os.getpid()


@app.task(executor="process")
def pid_into(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
