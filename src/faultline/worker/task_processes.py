"""Processes for tasks that compute. They hold no lease and write nothing: a process that hangs or dies harms one attempt.

A process runs one job at a time. It is killed when the time of its job is up, when the lease is lost, and with its worker.
Started anew (never forked: a worker has threads), it imports the task's module, and is used for many jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from faultline.app.outcomes import Snooze
from faultline.app.texts import storable
from faultline.core import events
from faultline.core.forks import keep_from_forks
from faultline.core.running import running
from faultline.worker.endings import TimedOut
from faultline.worker.stacks import Dump
from faultline.worker.threads import Threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from faultline.app.tasks import Task
    from faultline.worker.hold import Hold, Source

#: How long a process may take to start and to import the modules of the program.
_START_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
#: If the machine cannot start a process, its job is released for so long.
_AGAIN_SECONDS = 5.0
#: Before each message: how long it is.
LENGTH = struct.Struct(">Q")
#: The kernel kills a process when its worker dies. Elsewhere a thread of the process watches for that.
_KERNEL_KILLS = sys.platform == "linux"


def cpus() -> int:
    """How many processes can compute at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessDied(Exception):
    """The process that ran the task ended before the task did."""


class Remade:
    """An exception that is read without its own `__init__`, which takes other arguments than it has kept."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._given = kind, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self._given


def _remade(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    known: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    error: BaseException = known.__new__(kind, *args)
    vars(error).update(state)
    return error


class TaskProcesses:
    """At most `size` at once; started when needed, and kept."""

    def __init__(self, size: int, tasks: Iterable[Task[..., Any]]) -> None:
        #: What each process imports before its first job, so that this takes nothing of the job's time.
        self._functions = [(task.fn.__module__, task.fn.__qualname__) for task in tasks if task.processes is not None]
        self._room = asyncio.Semaphore(size)
        self._idle: list[TaskProcess] = []
        self._all: set[TaskProcess] = set()
        self._threads = Threads()

    @asynccontextmanager
    async def one(self, task: Task[..., Any], source: Source) -> AsyncIterator[TaskProcess]:
        """A process for one job of this task. Killed afterwards if it has not answered."""
        async with self._turn(source):
            while self._idle and self._idle[-1].has_ended:
                self._end(self._idle.pop())  # it died while it had nothing to do
            process = self._idle.pop() if self._idle else await self._started()
            try:
                yield process
            finally:
                if process.is_busy or process.has_ended:
                    self._end(process)
                elif process.is_spent(task):
                    process.close()
                    self._forget(process)
                else:
                    self._idle.append(process)

    @asynccontextmanager
    async def _turn(self, source: Source) -> AsyncIterator[None]:
        """The source sees how many of its jobs compute, and how many of them wait."""
        source.computing += 1
        try:
            source.queued += 1
            try:
                await self._room.acquire()
            finally:
                source.queued -= 1
            try:
                yield
            finally:
                self._room.release()
        finally:
            source.computing -= 1

    async def close(self) -> None:
        """Let idle ones end by themselves, and kill what does not."""
        for process in self._all:
            process.close()
        waiting = [self._threads.run(process.wait) for process in self._all]
        if waiting:
            _, left = await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
            for process in self._all:
                process.kill()
            if left:
                await asyncio.wait(left, timeout=_CLOSE_SECONDS)
        self._threads.close()

    async def _started(self) -> TaskProcess:
        process: TaskProcess | None = None
        try:
            process = await TaskProcess.start(self._functions)
            self._all.add(process)
            async with asyncio.timeout(_START_SECONDS):
                await process.ready()
        except OSError as error:  # no memory or no process left for now; a timeout is one as well
            events.emit("process_not_started", error=f"{type(error).__name__}: {error}", again_in=_AGAIN_SECONDS)
            if process is not None:
                self._end(process)
            raise Snooze(_AGAIN_SECONDS) from error
        except BaseException:
            if process is not None:
                self._end(process)
            raise
        return process

    def _end(self, process: TaskProcess) -> None:
        process.kill()
        self._forget(process)

    def _forget(self, process: TaskProcess) -> None:
        """Wait for its end beside everything else: a killed process may hang in the kernel."""
        self._threads.run(process.wait).add_done_callback(lambda _: self._all.discard(process))


class TaskProcess:
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dump: Dump,
    ) -> None:
        self._process = process
        self._dump = dump
        self._writer = writer
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._hold: Hold | None = None
        self._jobs = self._memory = 0
        self._reading = asyncio.create_task(self._read(reader))
        self.is_busy = False
        self.has_ended = False

    @classmethod
    async def start(cls, functions: list[tuple[str, str]]) -> TaskProcess:
        ours, theirs = socket.socketpair()
        keep_from_forks(ours)
        dump = Dump()
        given = [theirs.fileno(), dump.fileno()]
        command = [sys.executable, "-P", "-m", "faultline.worker.task_process_main", *map(str, given)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            # In its own session: a Ctrl-C in the terminal is for the worker, which lets its jobs finish.
            process = subprocess.Popen(  # noqa: ASYNC220 - takes a few milliseconds, once for many jobs
                command, stdin=subprocess.DEVNULL, pass_fds=given, env=environ, start_new_session=True
            )
        except OSError:
            ours.close()
            dump.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        setup = {
            "parent": os.getpid(),
            "kernel_kills": _KERNEL_KILLS,
            "path": sys.path,
            "argv": sys.argv,
            "functions": functions,
            "main": None if spec is None else spec.name,
            "main_path": None if spec is not None else getattr(main, "__file__", None),
            "level": logging.getLogger().level,
        }
        started = cls(process, reader, writer, dump)
        started._send(setup)
        return started

    async def ready(self) -> None:
        """It has started, and imported what it will run."""
        await self._answer

    async def call(self, hold: Hold, task: Task[..., Any], limit: float | None) -> Any:
        """Run the task there. Raises what it raises, `TimedOut` and `ProcessDied`."""
        measures = task.processes is not None and task.processes.max_memory is not None
        message = (task.fn.__module__, task.fn.__qualname__, hold.lease, hold.counts.queue, limit, measures)
        frame = pickle.dumps(message)
        self._answer = asyncio.get_running_loop().create_future()
        self._hold = hold
        self.is_busy = True
        self._writer.write(LENGTH.pack(len(frame)) + frame)
        if self.has_ended:
            await self._died()
        try:
            async with asyncio.timeout(limit):
                raised, value, self._memory = await self._answer
        except TimeoutError as error:
            late = TimedOut(f"timed out after {limit:g} s; its process was killed")
            where = await self._dump.asked(self._process.pid)
            if where:
                vars(late)["__faultline_text__"] = storable(f"TimedOut: {late}\n{where}".rstrip())
            raise late from error
        self.is_busy = False
        self._hold = None
        self._jobs += 1
        if raised:
            raise value
        return value

    def is_spent(self, task: Task[..., Any]) -> bool:
        limits = task.processes
        if limits is None:
            return False
        many = limits.max_jobs is not None and self._jobs >= limits.max_jobs
        return many or (limits.max_memory is not None and self._memory > limits.max_memory * 1024 * 1024)

    def close(self) -> None:
        """An idle process ends when its socket closes."""
        self._writer.close()

    def kill(self) -> None:
        self._reading.cancel()
        self._writer.close()
        if self._process.returncode is None:
            self._kill_all()

    def _kill_all(self) -> None:
        """The process and the programs that it has started: they would go on beside the next attempt."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Blocks."""
        try:
            return self._process.wait()
        finally:
            self._dump.close()

    def _send(self, message: object) -> None:
        frame = pickle.dumps(message)
        self._writer.write(LENGTH.pack(len(frame)) + frame)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                kind, content = pickle.loads(await reader.readexactly(length))  # noqa: S301 - of our own process
                if kind == "log":
                    self._log(content)
                elif kind == "broken":
                    self._fail(ProcessDied(f"the process of the task could not start: {content}"))
                elif not self._answer.done():
                    self._answer.set_result(_answered(kind, content))
        except (asyncio.IncompleteReadError, OSError):
            await self._died()
        except Exception as error:  # noqa: BLE001 - a message that cannot be read
            self._fail(ProcessDied(f"what the process of the task sent cannot be read: {type(error).__name__}: {error}"))

    def _log(self, record: logging.LogRecord) -> None:
        """As if it were logged here, by the job."""
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            token = running.set(self._hold)
            try:
                logger.handle(record)
            finally:
                running.reset(token)

    async def _died(self) -> None:
        self.has_ended = True
        code: int | None = None
        for _ in range(200):  # its socket closes a moment before its status can be read
            code = self._process.poll()
            if code is not None:
                break
            await asyncio.sleep(0.01)
        # Its number is no other group's as long as what it has started lives.
        self._kill_all()
        self._fail(ProcessDied(_end_of(code)))

    def _fail(self, error: ProcessDied) -> None:
        self.has_ended = True
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # read, so that asyncio does not warn about one that nobody awaits


def _answered(kind: str, content: Any) -> Any:
    if kind != "ended":
        return content
    raised, frame, text, memory = content
    try:
        value = pickle.loads(frame)  # noqa: S301 - likewise
    except Exception as error:  # noqa: BLE001 - a class that cannot be made again here
        value = ProcessDied(f"what the task {'raised' if raised else 'returned'} cannot be read here: {error}")
        raised = True
    if raised and text is not None:
        vars(value)["__faultline_text__"] = text
    return raised, value, memory


def _end_of(code: int | None) -> str:
    if code is None:
        return "the process of the task closed its connection to the worker"
    if code >= 0:
        return f"the process of the task ended with exit code {code}"
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"the process of the task was killed by {name}{hint}"
