"""A worker process as drills need it: the real worker, with faults at named points, a muted heart or a wrong clock.

Run as `python -m faultline_proof.actor`; the events go to standard output, every single one, as JSON lines. What it sends to
its database is on tape.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.events import log_events
from faultline_proof.proxy import noticing_silence_after
from faultline_proof.scripted import Scripted
from faultline_proof.tape import Recording
from faultline_proof.tasks import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.worker import Worker

_ENDINGS = ("job_completed", "attempt_failed", "job_failed", "job_released", "stale_write_blocked")


class Muted:
    """A heart that never beats: leases run out under the worker's hands, and it does not notice."""

    def __init__(self, tick: Callable[[], float], watch: Callable[[], None]) -> None: ...

    def start(self) -> None: ...

    def wake(self) -> None: ...

    async def stop(self, last: Callable[[], None]) -> None: ...


class _StopAfterOne(logging.Handler):
    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "faultline_event", None) in _ENDINGS:
            self._worker.stop()


async def act(arguments: argparse.Namespace, recording: Recording) -> None:
    host = recording.host(
        None if arguments.patience is None else noticing_silence_after(arguments.patience),
        faults=Scripted(arguments.fault, arguments.dsn),
        seconds=lambda: time.time() + arguments.skew,
        pulse=Muted if arguments.mute else None,
        companion=not arguments.mute,
    )
    async with Faultline(arguments.dsn, host=host) as app:
        register(app)
        queues = {name: int(number) for name, _, number in (queue.partition("=") for queue in arguments.queue)}
        worker = app.worker(queues, grace_seconds=arguments.grace)
        if arguments.once:
            logging.getLogger("faultline.events").addHandler(_StopAfterOne(worker))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        await worker.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faultline_proof.actor")
    parser.add_argument("dsn")
    parser.add_argument("tape", type=Path)
    parser.add_argument("--queue", action="append", default=[], help="NAME=CONCURRENCY")
    parser.add_argument("--fault", action="append", default=[], help="POINT=ACTION[@VISIT]")
    parser.add_argument("--mute", action="store_true", help="no heartbeat")
    parser.add_argument("--once", action="store_true", help="stop after the first ending")
    parser.add_argument("--skew", type=float, default=0.0, help="seconds that this machine's time of day is wrong")
    parser.add_argument("--patience", type=int, help="seconds until the system gives up on a peer that fell silent")
    parser.add_argument("--grace", type=float, default=30.0)
    arguments = parser.parse_args()
    arguments.queue = arguments.queue or ["default=10"]
    log_events(sys.stdout, level=logging.DEBUG, timespec="microseconds")
    with Recording.to(arguments.tape, arguments.tape.name) as recording:
        asyncio.run(act(arguments, recording))


if __name__ == "__main__":
    main()
