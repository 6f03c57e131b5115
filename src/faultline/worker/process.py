"""The process around a worker: signals, and several processes under one parent, which restarts a child that dies.

The first SIGTERM or SIGINT stops claiming and lets running jobs finish. The second ends the process at once; other workers
notice that within seconds. Children whose parent was killed stop as if they had got the signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.worker.base.force_exit import CLOSE_SECONDS, end, end_after
from faultline.worker.companion.memory import NamelessFile
from faultline.worker.signals import SIGNALS, restore_signals, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.worker.worker import Worker

_PAUSE_MIN, _PAUSE_MAX = 0.5, 15.0
_HEALTHY_SECONDS = 10.0
#: A child that died early so often in a row is not starting, but dying in a loop.
_EARLY_DEATHS_MAX = 3
#: The exit code of a worker that asks to be replaced by a fresh process (EX_TEMPFAIL of sysexits.h).
REPLACE_EXIT_CODE = 75


def run_until_signalled(
    make: Callable[[], Worker], *, parent: int | None = None, leave: Callable[[], None] = lambda: None
) -> int:
    """Run a worker in this process, and nothing else, until a signal. Returns the exit code.

    `parent` is the reading end of a pipe: when its other end closes, the parent is gone and the worker stops. If tasks are
    left that cannot be ended, this calls `leave` and ends the process: Python would wait for them.
    """
    collect_less_often()
    if parent is not None:
        os.set_inheritable(parent, False)  # programs that tasks start must not get it
    runner = asyncio.Runner(loop_factory=_loop_factory())
    code = 0
    try:
        loop = runner.get_loop()
        worker = _to_the_end(loop, loop.create_task(_run(make, parent)))
        code = REPLACE_EXIT_CODE if worker.wants_replacement else int(worker.gave_up)
        if worker.left_behind:
            leave()
            end(code)
    finally:
        # Closing waits for a task's `asyncio.to_thread`.
        closed = end_after(CLOSE_SECONDS, code, leave)
        runner.close()
        closed.set()
        restore_signals()
    return code


def _to_the_end(loop: asyncio.AbstractEventLoop, main: asyncio.Task[Worker]) -> Worker:
    """Run until the worker has ended, whatever its tasks do to the loop.

    asyncio stops the loop on SystemExit and KeyboardInterrupt wherever they are raised, and anybody may call `loop.stop`.
    One job must not end all others: resume the loop, which has lost nothing. The error still reaches its job.
    """
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            if main.done():
                return main.result()
            if loop.is_closed():
                raise
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
            events.emit("loop_resumed", error=repr(error)[:500], where=where)


async def _run(make: Callable[[], Worker], parent: int | None) -> Worker:
    worker = make()
    worker.owns_process = True
    loop = asyncio.get_running_loop()
    stop_on_signals(worker, loop)

    def parent_gone() -> None:
        loop.remove_reader(parent)  # type: ignore[arg-type]
        worker.say_stopping("the parent process is gone")
        worker.stop()

    if parent is not None:
        loop.add_reader(parent, parent_gone)
    await worker.run()
    if parent is not None:
        loop.remove_reader(parent)
    return worker


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The fastest loop that is installed; None: Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def collect_less_often() -> None:
    """Python looks for reference cycles after every 700 new objects: a tenth of the time at full load."""
    gc.collect()
    gc.freeze()  # imported modules stay anyway
    gc.set_threshold(10_000, 10, 10)


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    started_at: float
    pause: float = _PAUSE_MIN
    restart_at: float | None = None
    #: How many of the signals were sent to it.
    sent: int = 0
    #: What it shares with this process; None: nobody asks for its health.
    memory: NamelessFile | None = None
    #: How many of its processes died early, in a row.
    early_deaths: int = 0
    last_status: int = 0


class Supervisor:
    """Keeps a number of worker processes running, and ends them when it ends."""

    def __init__(self, command: Sequence[str], processes: int, *, shares_memory: bool = False) -> None:
        self._command = list(command)
        self._shares_memory = shares_memory
        #: Signals to this process. The handler only notes them: a child that just starts is not in the list yet.
        self._signals: list[int] = []
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self._signals.append(number))
        # Nobody writes into it. The children see it close when this process ends, however it ends.
        self._lifeline, self._alive = os.pipe()
        self._children = [self._spawn() for _ in range(processes)]

    @property
    def pids(self) -> set[int]:
        return {child.process.pid for child in self._children if child.process.poll() is None}

    @property
    def memories(self) -> dict[int, NamelessFile]:
        """What each living child shares with this process, by its process id."""
        living = [child for child in self._children if child.process.poll() is None]
        return {child.process.pid: child.memory for child in living if child.memory is not None}

    @property
    def dying(self) -> list[str]:
        """The children that die again and again, soon after their start."""
        now = time.monotonic()
        return [
            f"died {child.early_deaths} times in a row within {_HEALTHY_SECONDS:g} s of its start, the last time by"
            f" {_shown(child.last_status)}"
            for child in self._children
            if child.early_deaths >= _EARLY_DEATHS_MAX
            and (child.process.poll() is not None or now - child.started_at <= _HEALTHY_SECONDS)
        ]

    def run(self) -> int:
        """Run until signalled and all children have ended. Returns the exit code: 0 if all stopped without an error."""
        while any(child.process.poll() is None or not self._signals for child in self._children):
            self.tick()
            time.sleep(0.1)
        # A child that was still starting had no handler for the signal yet, and held no jobs.
        codes = [child.process.returncode for child in self._children]
        return max((abs(code) for code in codes if -code not in SIGNALS), default=0)

    def tick(self) -> None:
        """Pass signals on. Restart dead children, with growing pauses while they die early."""
        for child in self._children:
            if self._signals:
                self._pass_on(child)
            elif child.process.poll() is not None:
                self._start_again(child, time.monotonic())

    def _start_again(self, child: _Child, now: float) -> None:
        if (
            child.restart_at is None
            and child.process.returncode == REPLACE_EXIT_CODE
            and now - child.started_at > _PAUSE_MIN
        ):
            child.restart_at = now
            events.emit("worker_replaced", pid=child.process.pid)
        elif child.restart_at is None:
            lived = now - child.started_at
            child.pause = _PAUSE_MIN if lived > _HEALTHY_SECONDS else min(child.pause * 2, _PAUSE_MAX)
            child.restart_at = now + child.pause
            child.early_deaths = 0 if lived > _HEALTHY_SECONDS else child.early_deaths + 1
            child.last_status = child.process.returncode
            events.emit("worker_died", pid=child.process.pid, status=child.process.returncode, again_in=child.pause)
        elif now >= child.restart_at:
            try:
                fresh = self._spawn()
            except OSError as error:
                # No memory or no process left for now. The other children go on.
                child.restart_at = now + child.pause
                events.emit("worker_not_started", error=str(error), again_in=child.pause)
                return
            child.memory = fresh.memory
            child.process, child.started_at, child.restart_at = fresh.process, fresh.started_at, None

    def _spawn(self) -> _Child:
        # In its own session: a Ctrl-C in the terminal reaches the children only once, through this process.
        command, fds = [*self._command, "--parent", str(self._lifeline)], [self._lifeline]
        memory = NamelessFile("faultline-health") if self._shares_memory else None
        if memory is not None:
            command += ["--health-memory", str(memory.fileno())]
            fds.append(memory.fileno())
        process = subprocess.Popen(command, start_new_session=True, pass_fds=fds)
        return _Child(process, time.monotonic(), memory=memory)

    def _pass_on(self, child: _Child) -> None:
        """Send every signal, also to a child that did not exist yet when it came."""
        for number in self._signals[child.sent :]:
            child.sent += 1
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)


def _shown(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    return next((one.name for one in signal.Signals if one == -status), f"signal {-status}")
