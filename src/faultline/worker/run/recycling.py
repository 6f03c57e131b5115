"""Stop a worker that has run enough jobs or uses too much memory, so that a fresh process takes over. Jobs finish first."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.lease.stop import Stop

_LOOK_SECONDS = 0.5
_MIB = 1024 * 1024
_PAGE_BYTES = resource.getpagesize()


def memory_bytes() -> int:
    """The memory that this process uses now; where the kernel does not say, the most that it has used."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024


class Recycling:
    """`started`: how many jobs have started. None: no limit."""

    def __init__(self, stop: Stop, started: Callable[[], int], max_jobs: int | None, max_memory: int | None) -> None:
        self._stop = stop
        self._started = started
        self._max_jobs = max_jobs
        self._max_memory = max_memory

    @property
    def is_wanted(self) -> bool:
        return self._max_jobs is not None or self._max_memory is not None

    async def run(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(_LOOK_SECONDS)

    def tick(self) -> None:
        if self._max_jobs is not None and self._started() >= self._max_jobs:
            self._stop.replace(f"it has run {self._started()} jobs, and is to run {self._max_jobs}", is_planned=True)
        elif self._max_memory is not None and (used := memory_bytes() // _MIB) > self._max_memory:
            self._stop.replace(f"it uses {used} MiB, and is to use {self._max_memory} MiB at most", is_planned=True)
