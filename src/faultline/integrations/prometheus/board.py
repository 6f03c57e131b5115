"""The state of the whole database, read at most every few seconds however many scrapes come.

Once started, a thread reads it while scrapes come, so that they do not wait. Another does what takes long: counting jobs
where no worker does, and checking the invariants.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.errors import DatabaseUnavailable
from faultline.store import verbs
from faultline.store.reads import groups, invariants, limits, overview, suspended, tick_history

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.limits import BudgetRecord
    from faultline.store.database import Database

FRESH_SECONDS = 3.0
#: Older data is not shown.
STALE_SECONDS = 15.0
_INTEREST_SECONDS = 60.0
SAMPLE_SECONDS = 5.0
INVARIANTS_SECONDS = 600.0
#: How soon to try again if an invariant could not be checked.
UNCHECKED_SECONDS = 60.0
#: How long a reader waits for the thread if its data is old.
_LOOK_SECONDS = 5.0
#: No more than 2 % of the time.
_SHARE = 50.0


@dataclass(frozen=True, slots=True)
class Seen:
    queues: list[overview.QueueLine]
    totals: list[overview.Total]
    workers_alive: int
    #: With an open session but no heartbeat: frozen, or cut off from the database.
    workers_silent: int
    #: Since jobs were counted; None: never.
    counted_seconds_ago: float | None = None
    #: None: not counted yet.
    flows: suspended.FlowTotals | None = None
    schedules: tick_history.ScheduleTotals | None = None
    #: Queues with limits; None: not looked at yet.
    limits: list[groups.QueueUse] | None = None
    budgets: list[BudgetRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the last check of the invariants found."""

    broken: int = 0
    #: Those that could not be checked.
    unchecked: int = 0
    #: Since all were checked, or since the start.
    age_seconds: float = 0.0


class Board:
    """`read` returns the last data, or reads it itself if `start` was not called."""

    def __init__(
        self, database: Database, audit: Database | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        #: For the invariants: they read every job and take long.
        self._audit = audit or database
        self._monotonic = monotonic
        self._reading = threading.Lock()
        self._seen: Seen | None = None
        self._seen_at = self._failed_at = float("-inf")
        self._asked_at = 0.0
        self._flows: suspended.FlowTotals | None = None
        self._limits: list[groups.QueueUse] | None = None
        self._broken: set[str] = set()
        self._unchecked: set[str] = set()
        self._checked_at = monotonic()
        self._invariants_at = 0.0
        self._looked = threading.Condition()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def read(self) -> Seen:
        """Raises if the database does not answer. With a thread, nobody waits long for that."""
        if not self._threads:
            with self._reading:
                fresh = self._monotonic() < self._seen_at + FRESH_SECONDS
                return self._seen if self._seen is not None and fresh else self._look()
        self._asked_at = now = self._monotonic()
        # Waiting releases the lock: in an outage all readers wait at the same time, not one after the other.
        with self._looked:
            if max(self._seen_at, self._failed_at) <= now - STALE_SECONDS:
                self._wanted.set()
                self._looked.wait_for(lambda: max(self._seen_at, self._failed_at) >= now, _LOOK_SECONDS)
            # Data from before the failure does not count, however recent.
            if self._seen is not None and self._seen_at > max(self._failed_at, now - STALE_SECONDS):
                return self._seen
        raise DatabaseUnavailable("the database has not answered for some seconds; look for database_unavailable in the log")

    def checked(self) -> Checked:
        return Checked(len(self._broken), len(self._unchecked), self._monotonic() - self._checked_at)

    def _look(self) -> Seen:
        now = self._monotonic()
        seen = Seen(
            self._database.run(overview.queues()),
            self._database.run(overview.totals()),
            sum(worker.alive for worker in self._database.run(overview.workers())),
            self._database.run(overview.connected_and_silent()),
            self._database.run(overview.counted_seconds_ago()),
            self._flows if self._threads else self._database.run(suspended.totals()),
            self._database.run(tick_history.totals()),
            self._limits if self._threads else self._database.run(groups.in_use()),
            self._database.run(limits.budgets()),
        )
        with self._looked:
            self._seen, self._seen_at = seen, now
            self._looked.notify_all()
        return seen

    def start(self) -> None:
        if not self._threads:
            self._asked_at = self._monotonic()
            self._wanted.set()
            targets = (self._keep_looking, self._tend)
            self._threads = [threading.Thread(target=t, name="faultline-board", daemon=True) for t in targets]
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        for thread in self._threads:
            thread.join()

    def tick(self) -> float:
        """Count, and check the invariants when due. Returns the seconds until the next call."""
        began = self._monotonic()
        try:
            self._database.run(verbs.sample())
        except Exception as error:  # noqa: BLE001 - a login that may only read cannot count
            events.emit("sample_failed", error=str(error))
        try:
            self._flows = self._database.run(suspended.totals())
            self._limits = self._database.run(groups.in_use())
        except Exception as error:  # noqa: BLE001 - likewise
            events.emit("sample_failed", error=str(error))
        sampled = self._monotonic()
        if sampled >= self._invariants_at:
            self.check()
            pause = UNCHECKED_SECONDS if self._unchecked else INVARIANTS_SECONDS
            self._invariants_at = sampled + max(pause, _SHARE * (self._monotonic() - sampled))
        return max(SAMPLE_SECONDS, _SHARE * (sampled - began))

    def check(self) -> None:
        """Check each separately: one that takes too long must not hide that another is broken."""
        began = self._monotonic()
        for name in invariants.names():
            try:
                violation = self._audit.run(invariants.invariant(name))
            except Exception as error:  # noqa: BLE001 - one that was broken stays so until it is checked again
                self._unchecked.add(name)
                events.emit("invariants_unchecked", error=f"{name}: {error}")
            else:
                self._unchecked.discard(name)
                (self._broken.add if violation else self._broken.discard)(name)
        if not self._unchecked:
            self._checked_at = began

    def _keep_looking(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait(FRESH_SECONDS)
            self._wanted.clear()
            if self._monotonic() < self._asked_at + _INTEREST_SECONDS:
                try:
                    self._look()
                except Exception:  # noqa: BLE001 - `read` raises then
                    with self._looked:
                        self._failed_at = self._monotonic()
                        self._looked.notify_all()

    def _tend(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            pause = self.tick()
