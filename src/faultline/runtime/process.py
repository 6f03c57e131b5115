"""The process around a worker: signals, and several processes under one parent. A child that dies is started again.

The first SIGTERM or SIGINT stops claiming and finishes what runs; the second ends at once, and the leases that are left
are noticed by others within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.runtime.worker import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PAUSE_MIN, _PAUSE_MAX = 0.5, 15.0
_HEALTHY_SECONDS = 10.0


def run_until_signalled(make: Callable[[], Worker]) -> None:
    """Run a worker in this process, which is its own, until it is told to stop."""
    collect_less_often()

    async def main() -> None:
        worker = make()
        loop = asyncio.get_running_loop()
        asked = 0

        def stop(number: int) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                events.emit("worker_exit", worker=worker.id, reason="second signal")
                os._exit(128 + number)
            events.emit("worker_stopping", worker=worker.id)
            worker.stop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        await worker.run()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


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


class Supervisor:
    """Keeps a number of worker processes alive, and takes them along when it goes."""

    def __init__(self, command: Sequence[str], processes: int) -> None:
        self._command = list(command)
        self._children = [self._spawn() for _ in range(processes)]
        self._signals = 0

    @property
    def pids(self) -> set[int]:
        """Of those that are alive."""
        return {child.process.pid for child in self._children if child.process.poll() is None}

    def run(self) -> int:
        """Until signalled, and all children are gone. The exit code is 0 if all of them stopped by themselves."""
        for number in _SIGNALS:
            signal.signal(number, self._signalled)
        while any(child.process.poll() is None or not self._signals for child in self._children):
            self.tick()
            time.sleep(0.1)
        # One that was still starting when the signal came had no handler for it yet. It held nothing.
        codes = [child.process.returncode for child in self._children]
        return max((abs(code) for code in codes if -code not in _SIGNALS), default=0)

    def tick(self) -> None:
        """Start again what died, with growing pauses while it keeps dying young."""
        now = time.monotonic()
        for child in self._children:
            if child.process.poll() is None or self._signals:
                continue
            if child.restart_at is None:
                lived = now - child.started_at
                child.pause = _PAUSE_MIN if lived > _HEALTHY_SECONDS else min(child.pause * 2, _PAUSE_MAX)
                child.restart_at = now + child.pause
                events.emit("worker_died", pid=child.process.pid, status=child.process.returncode, again_in=child.pause)
            elif now >= child.restart_at:
                fresh = self._spawn()
                child.process, child.started_at, child.restart_at = fresh.process, fresh.started_at, None

    def _spawn(self) -> _Child:
        # A session of its own: a Ctrl-C in the terminal reaches the children once, through us.
        return _Child(subprocess.Popen(self._command, start_new_session=True), time.monotonic())

    def _signalled(self, number: int, _: object) -> None:
        self._signals += 1
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)
