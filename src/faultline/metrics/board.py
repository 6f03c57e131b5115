"""How the whole database is doing, for whoever asks again and again. The database is asked at most every few seconds.

Once started, a thread asks it for as long as anybody reads, so that a reader does not wait. Another does what takes long:
counting jobs where no worker does, and checking the invariants.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.store import invariants, overview, queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.database import Database

FRESH_SECONDS = 3.0
#: Older than this it is not shown, also where the thread has fallen behind or nobody has read for long.
STALE_SECONDS = 15.0
_INTEREST_SECONDS = 60.0
SAMPLE_SECONDS = 5.0
INVARIANTS_SECONDS = 600.0
#: No more than 2 % of the time.
_SHARE = 50.0


@dataclass(frozen=True, slots=True)
class Seen:
    queues: list[overview.QueueLine]
    totals: list[overview.Total]
    workers_alive: int
    #: None: not checked yet, or not ours to check.
    invariants_broken: int | None


class Board:
    """`read` answers with what was seen last, or looks itself. `start` begins to tend it, `close` ends that."""

    def __init__(self, database: Database, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._reading = threading.Lock()
        self._seen: Seen | None = None
        self._seen_at = 0.0
        self._asked_at = 0.0
        self._broken: int | None = None
        self._invariants_at = 0.0
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def read(self) -> Seen:
        with self._reading:
            self._asked_at = now = self._monotonic()
            age_max = FRESH_SECONDS if not self._threads else STALE_SECONDS
            if self._seen is None or now >= self._seen_at + age_max:
                return self._look()
            return self._seen

    def _look(self) -> Seen:
        now = self._monotonic()
        workers = self._database.run(overview.workers())
        seen = Seen(
            self._database.run(overview.queues()),
            self._database.run(overview.totals()),
            sum(worker.alive for worker in workers),
            self._broken,
        )
        self._seen, self._seen_at = seen, now
        return seen

    def start(self) -> None:
        if not self._threads:
            self._asked_at = self._monotonic()
            targets = (self._keep_looking, self._tend)
            self._threads = [threading.Thread(target=t, name="faultline-board", daemon=True) for t in targets]
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def tick(self) -> float:
        """Count, and check the invariants when that is due. Answers with the seconds until it is to be called again."""
        began = self._monotonic()
        try:
            self._database.run(queue.sample())
        except Exception as error:  # noqa: BLE001 - whoever may only look does not count
            events.emit("sample_failed", error=str(error))
        sampled = self._monotonic()
        if sampled >= self._invariants_at:
            try:
                self._broken = len(invariants.violations(self._database.run))
            except Exception as error:  # noqa: BLE001 - likewise
                self._broken = None
                events.emit("invariants_unchecked", error=str(error))
            took = self._monotonic() - sampled
            self._invariants_at = sampled + max(INVARIANTS_SECONDS, _SHARE * took)
        return max(SAMPLE_SECONDS, _SHARE * (sampled - began))

    def _keep_looking(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            pause = FRESH_SECONDS
            if self._monotonic() < self._asked_at + _INTEREST_SECONDS:
                with contextlib.suppress(Exception):  # whoever reads next asks for itself, and is told
                    self._look()

    def _tend(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            pause = self.tick()
