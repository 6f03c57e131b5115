"""A process that runs tasks for a worker: reads a job, calls the function, sends back what it returned or raised.

It knows no database and no lease of its own. It ends when the worker closes its socket, and is killed when the worker dies.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import logging.handlers
import os
import pickle
import select
import signal
import socket
import sys
import threading
from contextvars import copy_context
from inspect import iscoroutinefunction
from multiprocessing.spawn import import_main_path
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.app import processes
from faultline.app.parameters import Results
from faultline.app.tasks import Task
from faultline.attempt.attempt import Attempt
from faultline.attempt.outcomes import Outcome
from faultline.attempt.storable_text import text_of
from faultline.core import forks
from faultline.core.bounds import ARGS_BYTES_MAX
from faultline.core.errors import ConfigError
from faultline.core.host import Host
from faultline.core.running import running
from faultline.worker.base.counters import Tally
from faultline.worker.base.timeout_stacks import answer_with
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.run.middleware import around_blocking
from faultline.worker.run.processes.answers import error_fields, log_fields, outcome_fields, result_text
from faultline.worker.run.processes.reset import Surroundings
from faultline.worker.run.processes.task_process import JOB_BYTES_MAX, LENGTH, NUMBER, lease_of
from faultline.worker.run.recycling import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_READ_BYTES = JOB_BYTES_MAX + NUMBER.size
# Looked up before the first job, like the methods of the sockets below. A job may replace the functions of these modules:
# the next job would fail because of that, or run for ever because its worker is not told of its end.
_written = json.JSONEncoder(ensure_ascii=False).encode
_unpickled = pickle.loads


def main() -> None:
    stream, jobs = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    wire = _Wire(stream)
    answer_with(int(sys.argv[3]))
    setup = wire.receive()
    if setup is None:
        return
    _die_with(setup["parent"], kernel_kills=setup["kernel_kills"])
    if sys.platform == "linux":
        # Programs that a job leaves behind become our children when what started them ends: so they are found.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    sys.path[:], sys.argv = setup["path"], setup["argv"]
    processes.is_inside = True
    runner = _Runner(wire, setup)
    try:
        for module, path in setup["functions"]:
            runner.function(module, path)
    except BaseException as error:  # noqa: BLE001 - a module may raise anything when it is imported
        wire.send("broken", text_of(error))
        return
    surroundings = Surroundings()
    wire.send("ready")
    _run(_Jobs(jobs, wire), wire, runner, surroundings)


def _run(jobs: _Jobs, wire: _Wire, runner: _Runner, surroundings: Surroundings) -> None:
    """One job after the other. The worker is told that a job begins before it does, with the end of the last one if it was
    there by then. What a job left behind is cleared away before its end is told: if that ends the process, it did that.
    """
    begun, ran = None, 0
    while True:
        if begun is None:
            if (begun := jobs.next()) is None:
                return
            wire.send("began")
        limits, answer, body = runner.run(jobs.read(begun))
        ran += 1
        why = surroundings.restore()
        runner.log_to_worker()
        if why is not None or (limits is not None and is_spent(limits, ran)):
            wire.send("ended", "spent", why, *answer, body=body)
            return
        begun = jobs.taken()
        wire.send("ended", "idle" if begun is None else "follows", None, *answer, body=body)


def is_spent(limits: processes.Processes, jobs: int) -> bool:
    """Whether the process is to be replaced after so many jobs. Its memory is read only for a limit: that would take a
    fiftieth of the time of a short job.
    """
    if limits.max_jobs is not None and jobs >= limits.max_jobs:
        return True
    return limits.max_memory is not None and memory_bytes() > limits.max_memory * 1024 * 1024


class _Function(NamedTuple):
    """A task, as this process calls it."""

    call: Callable[..., Any]
    results: Results
    #: None: its module has the function, and another one has made a task of it.
    task: Task[..., Any] | None


#: How an attempt ended, and the fields of its outcome or its error.
_Answer = tuple[str, Any]


class _Runner:
    def __init__(self, wire: _Wire, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._functions: dict[tuple[str, str], _Function] = {}
        self._tally = Tally(lambda: 0.0)
        self._to_worker = _ToWorker(wire)
        #: What the worker calls the modules that have other names here.
        self._aliases = {"__mp_main__": "__main__"}
        if setup["main"] is not None and not setup["main"].endswith(".__main__"):
            self._aliases[setup["main"]] = "__main__"
        self.log_to_worker()

    def run(self, frame: bytes | memoryview) -> tuple[processes.Processes | None, _Answer, str]:
        """The limits of the process, how the attempt ended, and the text of a result."""
        limits, task, args_max = None, None, ARGS_BYTES_MAX
        generation = forks.generation
        try:
            limits, module, path, job_id, values, queue, limit, (result_max, args_max) = _unpickled(frame)
            function = self.function(module, path)
            task = function.task
            # Its own context: what a job sets there is not the next one's.
            value = copy_context().run(self._call, function, lease_of(job_id, values), queue, limit)
        except BaseException as error:  # noqa: BLE001 - whatever a task raises is its outcome
            if forks.generation != generation:
                forks.end_child(error)
            return limits, self._raised(error, task, args_max), ""
        if forks.generation != generation:
            # A child that the task forked: its parent answers.
            forks.end_child(None)
        if isinstance(value, Outcome):
            return limits, self._outcome(value, task, args_max, raised=False), ""
        text = result_text(value, function.results, result_max)
        if isinstance(text, str):
            return limits, ("returned", None), text
        return limits, self._outcome(text, None, args_max, raised=False), ""

    def _call(self, function: _Function, lease: Lease, queue: str, limit: float | None) -> Any:
        hold = HeldLease(lease, 0.0, self._tally.of(queue))
        hold.by = _Here(limit)
        running.set(hold)
        return function.call(**lease.args)

    def _raised(self, error: BaseException, task: Task[..., Any] | None, args_max: int) -> _Answer:
        if isinstance(error, Outcome):
            return self._outcome(error, task, args_max, raised=True)
        return "raised", error_fields(error, text_of(error), self._aliases)

    def _outcome(self, outcome: Outcome, task: Task[..., Any] | None, args_max: int, *, raised: bool) -> _Answer:
        try:
            name, fields = outcome_fields(outcome, task, args_max)
        except BaseException as error:  # noqa: BLE001 - what an outcome carries may be anything
            return self._raised(RuntimeError(f"its outcome cannot be sent to the worker: {text_of(error)}"), None, args_max)
        return "outcome", [name, fields, raised]

    def function(self, module: str, path: str) -> _Function:
        found = self._functions.get((module, path))
        if found is None:
            task = self._imported(module)
            for part in path.split("."):
                task = getattr(task, part)
            if isinstance(task, Task):
                found = _Function(_wrapped(task), task.results, task)
            else:
                found = _Function(task, Results(task, path), None)
            self._functions[module, path] = found
            self.log_to_worker()  # what was imported may have configured its own
        return found

    def log_to_worker(self) -> None:
        """Whatever is logged here goes through the worker's handlers."""
        root, handler = logging.getLogger(), self._to_worker
        handler.level, handler.formatter = logging.NOTSET, None
        handler.filters.clear()
        root.filters.clear()
        root.handlers[:] = [handler]
        root.setLevel(self._setup["level"])

    def _imported(self, module: str) -> Any:
        if module != "__main__":
            return importlib.import_module(module)
        if self._setup["main"] is not None:
            sys.modules["__main__"] = found = importlib.import_module(self._setup["main"].removesuffix(".__main__"))
            return found
        if self._setup["main_path"] is None:
            raise ConfigError("the task is in a program without a file, so its process cannot import it; put it in a module")
        import_main_path(self._setup["main_path"])
        return sys.modules["__main__"]


def _wrapped(task: Task[..., Any]) -> Callable[..., Any]:
    """With the program's blocking middleware around it, which runs where the task runs."""
    app: Any = task._app  # noqa: SLF001 - ours
    middleware = [one for one in app.hooks.middleware if not iscoroutinefunction(one)]
    return around_blocking(task.fn, middleware, takes_job=False) if middleware else task.fn


class _Here:
    """The executor, as far as a job sees it from here."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit

    @property
    def state(self) -> dict[str, Any]:
        raise ConfigError(
            "job.state is the worker's, and this task runs in a process of its own; load what it needs in a function with"
            " functools.cache"
        )

    def seen(self, hold: HeldLease) -> Attempt:
        return Attempt(hold, Host(), self._limit)

    def leave_behind(self, hold: HeldLease) -> None:
        """Not from here."""


class _Wire:
    def __init__(self, wire: socket.socket) -> None:
        wire.set_inheritable(False)
        # A child would keep it open, and its worker would not notice that this process has ended.
        forks.keep_from_forks(wire)
        self.fileno, self._send_all, self._receive_part = wire.fileno, wire.sendall, wire.recv
        self._lock = threading.Lock()

    def send(self, *head: object, body: str = "") -> None:
        frame = _written(head).encode("utf-8", "surrogatepass")
        if body:
            frame += b"\n" + body.encode()
        with self._lock:
            self._send_all(LENGTH.pack(len(frame)) + frame)

    def receive(self) -> Any:
        """None: the worker wants no more."""
        frame = self.receive_frame()
        return None if frame is None else _unpickled(frame)

    def receive_frame(self) -> bytes | None:
        head = self._read(LENGTH.size)
        return None if head is None else self._read(LENGTH.unpack(head)[0])

    def _read(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            part = self._receive_part(min(size - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)


class _Jobs:
    """What the worker gives this process to run. What is read here, this process has; the worker takes back what is not."""

    def __init__(self, jobs: socket.socket, wire: _Wire) -> None:
        jobs.set_inheritable(False)
        self._receive_job = forks.keep_from_forks(jobs).recv
        self._wire = wire
        self._both = select.poll()
        for one in (jobs, wire):
            self._both.register(one, select.POLLIN)
        #: Large jobs, by their numbers. The worker may have taken back some of them.
        self._large: dict[int, bytes] = {}

    def taken(self) -> bytes | None:
        """The next one, if it is there."""
        try:
            return self._receive_job(_READ_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return None

    def next(self) -> bytes | None:
        """Waits for it. None: the worker wants no more."""
        while True:
            readable = [number for number, _ in self._both.poll()]
            if self._wire.fileno() in readable and not self._receive():
                return None
            if (found := self.taken()) is not None:
                return found

    def read(self, found: bytes) -> bytes | memoryview:
        (number,) = NUMBER.unpack_from(found)
        if len(found) > NUMBER.size:
            return memoryview(found)[NUMBER.size :]
        while number not in self._large:
            if not self._receive():
                sys.exit(0)
        frame = self._large[number]
        self._large = {other: kept for other, kept in self._large.items() if other > number}
        return frame

    def _receive(self) -> bool:
        frame = self._wire.receive_frame()
        if frame is None:
            return False
        self._large[NUMBER.unpack_from(frame)[0]] = frame[NUMBER.size :]
        return True


class _ToWorker(logging.handlers.QueueHandler):
    def __init__(self, wire: _Wire) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._wire = wire
        self._generation = forks.generation

    def enqueue(self, record: logging.LogRecord) -> None:
        if forks.generation != self._generation:
            # A child of this process has no worker.
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        self._wire.send("log", log_fields(vars(record)))


def _die_with(parent: int, *, kernel_kills: bool) -> None:
    if kernel_kills:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
