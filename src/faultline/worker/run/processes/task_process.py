"""One process that runs tasks, as its worker sees it, and the jobs that were given to it.

A job is handed over as one message of a socket whose two ends the worker keeps: what the process has not read yet, its
worker can read itself. Whoever has read it has the job, so a job that waits in the socket is never run twice and never lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from faultline.core.forks import keep_from_forks
from faultline.core.model import Lease
from faultline.core.running import running
from faultline.worker.base.timeout_stacks import Dump
from faultline.worker.run.processes.answers import HEAD_BYTES_MAX, Returned, error_of, outcome_of

if TYPE_CHECKING:
    from faultline.app.tasks import Task
    from faultline.worker.lease.held_lease import HeldLease, Source

#: Before each message of the stream: how long it is.
LENGTH = struct.Struct(">Q")
#: Before each job: its number.
NUMBER = struct.Struct(">Q")
#: A larger job goes through the stream, and only its number through the socket of the jobs.
JOB_BYTES_MAX = 16 * 1024
#: The kernel kills a process when its worker dies. Elsewhere a thread of the process watches for that.
_KERNEL_KILLS = sys.platform == "linux"
_READ_BYTES = 64 * 1024
#: An idle process begins a job within this time, or is replaced: it is frozen, as by SIGSTOP or a debugger.
_BEGIN_SECONDS = 10.0
#: A process whose last job took longer is given no job ahead.
QUICK_SECONDS = 0.05

_lease_values = attrgetter(*(field.name for field in fields(Lease) if field.name != "job_id"))


def lease_of(job_id: int, values: tuple[Any, ...]) -> Lease:
    """The one that `_lease_values` took apart: a lease as a whole takes several times as long to send."""
    return Lease(UUID(int=job_id), *values)


class ProcessDied(Exception):
    """The process that ran the task ended before the task did."""


def frame_of(hold: HeldLease, task: Task[..., Any], limit: float | None, *bytes_max: int) -> bytes:
    """A job, as its process reads it. The limits of its process are sent only if there are any.

    :param bytes_max: Of its result, and of the arguments with which it begins anew.
    """
    limits = task.processes
    if limits is not None and limits.max_jobs is None and limits.max_memory is None:
        limits = None
    lease, fn = hold.lease, task.fn
    values = _lease_values(lease)
    return pickle.dumps(
        (limits, fn.__module__, fn.__qualname__, lease.job_id.int, values, hold.counts.queue, limit, bytes_max)
    )


class Call:
    """A job that runs in a process, or waits for one. Without a frame: it only reserves one."""

    __slots__ = (
        "answer",
        "began_at",
        "deaths",
        "frame",
        "hold",
        "is_late",
        "limit",
        "number",
        "source",
        "task",
        "timer",
        "wants_new_process",
    )

    def __init__(
        self,
        number: int,
        source: Source,
        *,
        hold: HeldLease | None = None,
        task: Task[..., Any] | None = None,
        frame: bytes = b"",
        limit: float | None = None,
    ) -> None:
        self.number = number
        self.source = source
        self.hold = hold
        self.task = task
        self.frame = frame
        self.limit = limit
        #: How many processes ended that were given it, before they began it.
        self.deaths = 0
        #: Whether it raised, and what it returned or raised.
        self.answer: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        #: By the loop's clock; None: it waits.
        self.began_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        #: Its time is up: its process is about to be killed, whatever it answers.
        self.is_late = False
        #: Its process died, perhaps because of an earlier job.
        self.wants_new_process = False

    def begin(self, now: float) -> None:
        self.began_at = now
        self.source.queued -= 1

    def begin_again(self) -> None:
        """In a process that has run no other job."""
        if self.timer is not None:
            self.timer.cancel()
        self.began_at, self.wants_new_process = None, True
        self.source.queued += 1

    def end(self, value: Any, *, raised: bool) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            self.answer.set_result((raised, value))


class Pool(Protocol):
    """What is told of a process."""

    #: The largest result that a job may have, and the largest arguments.
    result_bytes_max: int
    args_bytes_max: int

    def has_room(self) -> None: ...

    def is_late(self, call: Call) -> None: ...

    def has_not_begun(self, process: TaskProcess, call: Call) -> None: ...

    def is_spent(self, process: TaskProcess, task: str, why: str | None) -> None: ...

    def has_died(self, process: TaskProcess) -> None: ...

    def is_useless(self, process: TaskProcess, why: ProcessDied | None = None) -> None: ...


class TaskProcess:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stream: socket.socket,
        jobs: tuple[socket.socket, socket.socket],
        dump: Dump,
        pool: Pool,
    ) -> None:
        self._process = process
        self._dump = dump
        self._stream = stream
        self._jobs, self._theirs = jobs
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._read, self._unsent = bytearray(), bytearray()
        #: The first one runs, once the process has said so. The others wait for it.
        self.calls: deque[Call] = deque()
        self.is_ready = self.is_quick = self.is_reserved = self.is_closed = False
        #: How many jobs have ended in it.
        self.jobs_ended = 0
        self._loop.add_reader(stream, self._readable)

    @classmethod
    def start(cls, functions: list[tuple[str, str]], pool: Pool) -> TaskProcess:
        (ours, theirs), jobs = socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        kept = (ours, *jobs)
        for one in kept:
            keep_from_forks(one).setblocking(False)
        dump = Dump()
        given = [theirs.fileno(), jobs[1].fileno(), dump.fileno()]
        command = [sys.executable, "-P", "-m", "faultline.worker.run.processes.main", *map(str, given)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            # In its own session: a Ctrl-C in the terminal is for the worker, which lets its jobs finish.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=given, env=environ, start_new_session=True
            )
        except OSError:
            for one in kept:
                one.close()
            dump.close()
            raise
        finally:
            theirs.close()
        started = cls(process, ours, jobs, dump, pool)
        started._send(pickle.dumps(_setup(functions)))
        return started

    @property
    def is_idle(self) -> bool:
        return self.is_ready and not self.calls and not self.is_reserved

    def may_run(self, call: Call) -> bool:
        return self.is_idle and not (call.wants_new_process and self.jobs_ended)

    @property
    def takes_ahead(self) -> bool:
        """Whether it will soon want another job: so it need not wait for its worker then."""
        calls = self.calls
        return self.is_quick and len(calls) == 1 and calls[0].began_at is not None and not self.is_reserved

    # Jobs

    def hand(self, call: Call) -> None:
        """It runs this after what it has."""
        if not self.calls:
            call.timer = self._loop.call_later(_BEGIN_SECONDS, self._pool.has_not_begun, self, call)
        self.calls.append(call)
        head = NUMBER.pack(call.number)
        if len(call.frame) <= JOB_BYTES_MAX:
            with contextlib.suppress(OSError):  # too large for this system: as one that is larger
                self._jobs.send(head + call.frame)
                return
        self._send(head + call.frame)
        self._jobs.send(head)

    def withdraw(self) -> list[Call]:
        """The calls that it has not read, in their order. They are no longer its own."""
        numbers = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                numbers.add(NUMBER.unpack(self._theirs.recv(NUMBER.size))[0])
        found = [call for call in self.calls if call.number in numbers]
        for call in found:
            self.calls.remove(call)
        return found

    # Its end

    def close(self) -> None:
        """Hear nothing more of it. An idle process ends when its stream closes."""
        if not self.is_closed:
            self.is_closed = True
            self._loop.remove_reader(self._stream)
            self._loop.remove_writer(self._stream)
            for one in (self._stream, self._jobs, self._theirs):
                one.close()

    def kill(self) -> None:
        self.close()
        if self._process.returncode is None:
            self.kill_all()

    def kill_all(self) -> None:
        """The process and the programs that it has started: they would go on beside the next attempt."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Blocks."""
        try:
            return self._process.wait()
        finally:
            self._dump.close()

    async def where(self) -> str:
        """What its task is doing now, as errors show it; empty if it does not say."""
        if self._process.returncode is None:
            with contextlib.suppress(ValueError):  # it has ended since
                return await self._dump.asked(self._process.pid)
        return ""

    # The stream

    def _send(self, frame: bytes) -> None:
        self._unsent += LENGTH.pack(len(frame)) + frame
        self._writable()

    def _writable(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                del unsent[: self._stream.send(unsent[:_READ_BYTES])]
        except BlockingIOError:
            self._loop.add_writer(self._stream, self._writable)
            return
        except OSError:
            unsent.clear()  # it has ended: whoever reads finds that
        self._loop.remove_writer(self._stream)

    def _readable(self) -> None:
        try:
            part = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._pool.has_died(self)
            return
        self._read += part
        while not self.is_closed and len(self._read) >= LENGTH.size:
            size = LENGTH.unpack_from(self._read)[0]
            end = LENGTH.size + size
            if size > HEAD_BYTES_MAX + 2 * max(self._pool.result_bytes_max, self._pool.args_bytes_max):
                # Arguments are text in JSON, at most twice as long. Nobody but the task itself wrote this. It is not kept
                # until it is complete.
                self._fail(f"the process of the task sent a message of {size} bytes, more than its worker reads")
            elif len(self._read) < end:
                return
            else:
                frame = bytes(self._read[LENGTH.size : end])
                del self._read[:end]
                try:
                    self._heard(frame)
                except Exception as error:  # noqa: BLE001 - a message that only the task itself can have written
                    shown = f"{type(error).__name__}: {error}"[:200]
                    self._fail(f"the worker cannot read what the process of the task sent: {shown}")

    def _fail(self, why: str) -> None:
        self._pool.is_useless(self, ProcessDied(why))

    def _heard(self, frame: bytes) -> None:
        head, _, body = frame.partition(b"\n")
        kind, *content = json.loads(head)
        if kind == "ended":
            then, why, how, value = content
            self._ended(then, why, how, value, body)
        elif kind == "began":
            self._began()
        elif kind == "log":
            self._log(logging.makeLogRecord(*content))
        elif kind == "ready":
            self.is_ready = True
            self._pool.has_room()
        elif kind == "broken":
            self._fail(f"the process of the task could not start: {content[0]}")
        else:
            raise ValueError(f"unknown message {kind!r:.40}")

    def _began(self) -> None:
        call, loop = self.calls[0], self._loop
        call.begin(loop.time())
        if call.timer is not None:
            call.timer.cancel()
        if call.answer.done():
            self._pool.is_useless(self)  # the call was given up in the moment in which it began
        elif call.limit is not None:
            call.timer = loop.call_later(call.limit, self._pool.is_late, call)

    def _ended(self, then: str, why: str | None, how: str, content: Any, body: bytes) -> None:
        call = self.calls[0]
        if call.is_late:
            return
        assert call.task is not None  # noqa: S101 - it was given a job
        raised, value = _answered(how, content, body, call.task)
        self.calls.popleft()
        self.jobs_ended += 1
        call.end(value, raised=raised)
        self.is_quick = self._loop.time() - (call.began_at or 0.0) < QUICK_SECONDS
        if then == "spent":
            self._pool.is_spent(self, call.task.name, why)
            return
        if then == "follows":
            self._began()
        if not self.is_closed:
            self._pool.has_room()

    def _log(self, record: logging.LogRecord) -> None:
        """As if it were logged here, by the job."""
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            token = running.set(self.calls[0].hold if self.calls else None)
            try:
                logger.handle(record)
            except Exception:  # noqa: BLE001 - a filter of the program: a log record fails no job
                logging.lastResort and logging.lastResort.handle(record)
            finally:
                running.reset(token)


def _setup(functions: list[tuple[str, str]]) -> dict[str, Any]:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return {
        "parent": os.getpid(),
        "kernel_kills": _KERNEL_KILLS,
        "path": sys.path,
        "argv": sys.argv,
        "functions": functions,
        "main": None if spec is None else spec.name,
        "main_path": None if spec is not None else getattr(main, "__file__", None),
        "level": logging.getLogger().level,
    }


def _answered(how: str, content: Any, body: bytes, task: Task[..., Any]) -> tuple[bool, Any]:
    """Whether the task raised, and what it returned or raised."""
    if how == "returned":
        return False, Returned(body.decode())
    if how == "raised":
        return True, error_of(content)
    name, fields, raised = content
    return raised, outcome_of(name, fields, task)


def end_of(code: int | None) -> ProcessDied:
    if code is None:
        return ProcessDied("the process of the task closed its connection to the worker")
    if code >= 0:
        return ProcessDied(f"the process of the task ended with exit code {code}")
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return ProcessDied(f"the process of the task was killed by {name}{hint}")
