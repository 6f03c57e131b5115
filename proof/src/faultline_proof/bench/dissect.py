"""One worker taken apart while it drains a queue: the CPU of each of its parts, and the statements that it sends.

In a process of its own, as a real one. Its CPU time is sampled by the operating system's profiling timer and each sample is
counted for the innermost function of ours, of the driver or of the event loop: no code is slowed down by being watched.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.app.application import Faultline
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.worker.process import collect_less_often

if TYPE_CHECKING:
    from types import FrameType

    from faultline.worker.worker import Worker

_SAMPLE_SECONDS = 0.001
CONCURRENCY = 100
#: Where a file, or one function in it, belongs. The innermost frame that is known decides.
_PARTS = {
    "store/verbs/lease.py:_leases": "decode what was claimed",
    "store/jsontext.py:decode": "decode what was claimed",
    "store/verbs/": "encode statements",
    "store/statement.py": "encode statements",
    "store/jsontext.py": "encode statements",
    "worker/claim/feed.py": "feed and hold",
    "worker/lease/held_lease.py": "feed and hold",
    "worker/lease/lease_table.py": "feed and hold",
    "worker/lease/heartbeat.py": "feed and hold",
    "worker/base/counters.py": "count",
    "worker/run/executor.py": "execute",
    "app/tasks.py": "execute",
    "worker/run/judge.py": "execute",
    "bench/dissect.py:nothing": "the task itself",
    "bench/dissect.py": "watching",
    "worker/write/completer.py": "complete",
    "worker/write/batcher.py": "complete",
    "store/async_database.py": "database and pool",
    "store/pool/async_pool.py": "database and pool",
    "store/translation.py": "database and pool",
    "psycopg/": "driver",
    "psycopg_binary/": "driver",
    "asyncio/": "event loop",
    "selectors.py": "event loop",
}
PARTS = [*dict.fromkeys(_PARTS.values()), "other"]


@dataclass(frozen=True, slots=True)
class Dissected:
    jobs: int
    seconds: float
    cpu_seconds: float
    samples: dict[str, int]
    statements: dict[str, int]

    @property
    def micros(self) -> dict[str, float]:
        """CPU per job of each part."""
        whole = sum(self.samples.values()) or 1
        return {part: self.samples.get(part, 0) / whole * self.cpu_seconds / self.jobs * 1e6 for part in PARTS}


def dissect(dsn: str, queue: str, jobs: int, *, count_statements: bool = False) -> Dissected:
    """Drain a queue that was filled before. Statements are counted in a drain of its own: that is not for free."""
    code = f"from faultline_proof.bench import dissect; dissect.child({queue!r}, {jobs}, {count_statements})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, "FAULTLINE_DSN": dsn}, stdout=subprocess.PIPE, check=True, timeout=600)
    return Dissected(**json.loads(done.stdout))


def child(queue: str, jobs: int, count_statements: bool) -> None:  # noqa: FBT001 - called by a line of code
    collect_less_often()
    found = counted(None, queue, jobs) if count_statements else sampled(queue, jobs)
    sys.stdout.write(json.dumps(found))


def counted(dsn: str | None, queue: str, jobs: int) -> dict[str, Any]:
    """Drain and count the statements, by name."""
    sent = _Sent()
    return _drained(dsn, queue, jobs, Host(faults=sent)) | {"statements": dict(sent.names)}


def sampled(queue: str, jobs: int) -> dict[str, Any]:
    """Drain and sample the main thread, in which all but the heartbeat happens."""
    samples: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        samples[part_of(frame)] += 1

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
    try:
        found = _drained(None, queue, jobs, Host())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0, 0.0)
    return found | {"samples": dict(samples)}


def part_of(frame: FrameType | None) -> str:
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        for name, part in _PARTS.items():
            where, _, only = name.partition(":")
            if where in file and (not only or only == function):
                return part
        frame = frame.f_back
    return "other"


def _drained(dsn: str | None, queue: str, jobs: int, host: Host) -> dict[str, Any]:
    async def main() -> None:
        async with app.worker({queue: CONCURRENCY}) as worker:
            while _succeeded(worker, queue) < jobs:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)

    app = Faultline(dsn, host=host)
    app.task(nothing)
    cpu, begun = time.process_time(), time.perf_counter()
    asyncio.run(main())
    seconds, used = time.perf_counter() - begun, time.process_time() - cpu
    app.close()
    return {"jobs": jobs, "seconds": seconds, "cpu_seconds": used, "samples": {}, "statements": {}}


def _succeeded(worker: Worker, queue: str) -> int:
    return int(worker.report()["queues"].get(queue, {}).get("succeeded", 0))


async def nothing(**_: Any) -> None:
    """What a queue costs by itself."""


class _Sent(Faults):
    """Counts the statements that are sent."""

    wanted = True

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        if point.startswith("before_") and point.endswith("_sent"):
            self.names[point[len("before_") : -len("_sent")]] += 1
