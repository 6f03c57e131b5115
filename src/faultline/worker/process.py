"""The process around a worker: signals, and several processes under one parent. A child that dies is started again.

The first SIGTERM or SIGINT stops claiming and finishes what runs; the second ends at once, and the leases that are left
are noticed by others within seconds. Children whose parent was killed stop as if they had got the signal.
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
from faultline.worker.exits import CLOSE_SECONDS, end, end_after
from faultline.worker.signals import SIGNALS, give_back_signals, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.worker.worker import Worker

_PAUSE_MIN, _PAUSE_MAX = 0.5, 15.0
_HEALTHY_SECONDS = 10.0
#: A worker ends with this when it asks to be replaced by a fresh process (EX_TEMPFAIL of sysexits.h).
REPLACE_EXIT_CODE = 75


def run_until_signalled(
    make: Callable[[], Worker], *, parent: int | None = None, leave: Callable[[], None] = lambda: None
) -> int:
    """Run a worker in this process, which is its own, until it is told to stop. Returns the exit code.

    `parent` is the reading end of a pipe: when its other end closes, the parent is gone and the worker stops. Where tasks
    are left that cannot be ended, `leave` is called and the process ends here: Python would wait for them.
    """
    collect_less_often()
    if parent is not None:
        os.set_inheritable(parent, False)  # not for programs that tasks start
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
        # A task's `asyncio.to_thread` would be waited for here.
        closed = end_after(CLOSE_SECONDS, code, leave)
        runner.close()
        closed.set()
        give_back_signals()
    return code


def _to_the_end(loop: asyncio.AbstractEventLoop, main: asyncio.Task[Worker]) -> Worker:
    """Run until the worker has ended, whatever its tasks do to the loop.

    asyncio lets SystemExit and KeyboardInterrupt out of the loop wherever they are raised, and anybody may call `loop.stop`.
    A branch of one job must not end the jobs of all others. The loop has lost nothing and is resumed; a branch's error
    reaches the job that waits for the branch.
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
    """The fastest loop there is here; None means Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - not made for every platform
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def collect_less_often() -> None:
    """Python looks for reference cycles after every 700 new objects: at full load, that is a tenth of its time."""
    gc.collect()
    gc.freeze()  # what was imported stays for good
    gc.set_threshold(10_000, 10, 10)


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    started_at: float
    pause: float = _PAUSE_MIN
    restart_at: float | None = None
    #: How many of the signals it was sent.
    told: int = 0


class Supervisor:
    """Keeps a number of worker processes alive, and takes them along when it goes."""

    def __init__(self, command: Sequence[str], processes: int) -> None:
        self._command = list(command)
        #: What this process was sent. The handler only notes it: a child may just be in the making, and not be known yet.
        self._signals: list[int] = []
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self._signals.append(number))
        # Nobody writes into it: the children hold the reading end, which closes when this process ends, however it ends.
        self._lifeline, self._alive = os.pipe()
        self._children = [self._spawn() for _ in range(processes)]

    @property
    def pids(self) -> set[int]:
        """Of those that are alive."""
        return {child.process.pid for child in self._children if child.process.poll() is None}

    def run(self) -> int:
        """Until signalled, and all children are gone. The exit code is 0 if all of them stopped by themselves."""
        while any(child.process.poll() is None or not self._signals for child in self._children):
            self.tick()
            time.sleep(0.1)
        # One that was still starting when the signal came had no handler for it yet. It held nothing.
        codes = [child.process.returncode for child in self._children]
        return max((abs(code) for code in codes if -code not in SIGNALS), default=0)

    def tick(self) -> None:
        """Pass signals on. Start again what died, with growing pauses while it keeps dying young."""
        for child in self._children:
            if self._signals:
                self._pass_on(child)
            elif child.process.poll() is not None:
                self._start_again(child, time.monotonic())

    def _start_again(self, child: _Child, now: float) -> None:
        if child.restart_at is None:
            lived = now - child.started_at
            child.pause = _PAUSE_MIN if lived > _HEALTHY_SECONDS else min(child.pause * 2, _PAUSE_MAX)
            child.restart_at = now + child.pause
            events.emit("worker_died", pid=child.process.pid, status=child.process.returncode, again_in=child.pause)
        elif now >= child.restart_at:
            try:
                fresh = self._spawn()
            except OSError as error:
                # No memory or no process left, for now. The other children go on.
                child.restart_at = now + child.pause
                events.emit("worker_not_started", error=str(error), again_in=child.pause)
                return
            child.process, child.started_at, child.restart_at = fresh.process, fresh.started_at, None

    def _spawn(self) -> _Child:
        # A session of its own: a Ctrl-C in the terminal reaches the children once, through us.
        command = [*self._command, "--parent", str(self._lifeline)]
        process = subprocess.Popen(command, start_new_session=True, pass_fds=[self._lifeline])
        return _Child(process, time.monotonic())

    def _pass_on(self, child: _Child) -> None:
        """Every signal, also to a child that was not there yet when it came."""
        for number in self._signals[child.told :]:
            child.told += 1
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)
