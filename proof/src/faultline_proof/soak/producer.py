"""Submits jobs steadily; what was acknowledged is on its tape. Nothing is taken for granted that was not answered.

Four ways of submitting, since each has its own way to survive a lost answer: many at once with ids made by the client, many
in a transaction of our own, one by one with an id of our own, one by one with a key.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.app.application import Faultline
from faultline.core.errors import FaultlineError, JobRejected, KeyConflict, OutcomeUnknown
from faultline.core.ids import Ids
from faultline.store.reads import views
from faultline_proof.reads import audit
from faultline_proof.soak import flows, limits, mischief
from faultline_proof.soak.tasks import LEASE_SECONDS, LONG_LEASE_SECONDS, WITH_SECONDS, register

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection
    from uuid import UUID

    from faultline.core.model import Submission
    from faultline_proof.tape import Recording

BACKLOG_MAX = 4000
BULK_MAX = 60
_PAUSE_SECONDS = 0.1
_KINDS = {
    "nothing": 46.0, "wait": 16.0, "wait_in_thread": 4.0, "effect": 12.0, "effect_in_thread": 4.0, "stumble": 3.0,
    "stumble_in_thread": 2.0, "walk": 10.0, "walk_in_thread": 3.0, **flows.SHARES, **limits.SHARES, **limits.TAKERS,
}  # fmt: skip
#: Most wait a moment, some long enough to be caught by any fault, a few longer than their lease.
_WAITS_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.2, 1.0, 3.0)
_WAITS_WEIGHTS = (20, 20, 20, 10, 15, 12, 3)
_LONG_LEASES = 0.3


@dataclass(slots=True)
class Record:
    """What the producer knows of its jobs beside what is on its tape, by their numbers."""

    #: How many of them it has got, at once or when it asked.
    acknowledged: int = 0
    #: Submissions whose answer was lost, and what asking gave: all of it is there, nothing of it, or (never!) a part.
    unknown: int = 0
    found: int = 0
    absent: list[int] = field(default_factory=list)
    halves: list[int] = field(default_factory=list)
    #: Submissions that failed and were sent again, by the class of the error.
    failed: Counter[str] = field(default_factory=Counter)


class Producer(threading.Thread):
    """`unfinished` is kept up to date by whoever watches the database: a soak must not drown in its own backlog."""

    def __init__(
        self, dsn: str, recording: Recording, chance: random.Random, per_second: float, faults: Collection[str] = ()
    ) -> None:
        super().__init__(name="producer", daemon=True)
        self._dsn = dsn
        self._recording = recording
        self._chance = chance
        self._per_second = per_second
        brought = {task: share for kind in faults for task, share in mischief.KINDS.get(kind, {}).items()}
        self._kinds = _KINDS | {task.__name__: share for task, share in brought.items()}
        now = time.monotonic()
        self._due = {task.__name__: now for task in mischief.EVERY_SECONDS if task in brought}
        self._ids = Ids()
        self._stopping = threading.Event()
        self._next = 0
        self.record = Record()
        self.unfinished = 0
        #: What ended it before it was told to stop.
        self.error: Exception | None = None

    def stop(self) -> None:
        """Submit nothing more. A lost answer is still asked for."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        try:
            with Faultline(self._dsn, host=self._recording.host()) as app:
                register(app)
                self._produce(app)
        except Exception as error:  # noqa: BLE001 - told to whoever looks at it
            self.error = error

    def _produce(self, app: Faultline) -> None:
        begun = time.monotonic()
        while not self._stopping.is_set():
            due = (time.monotonic() - begun) * self._per_second - self._next
            if due < 1 or self.unfinished > BACKLOG_MAX:
                self._stopping.wait(0.01)
                continue
            self._chance.choice((self._bulk, self._in_transaction, self._with_id, self._with_key))(app)

    def _bulk(self, app: Faultline) -> None:
        numbers, jobs = self._many(app)
        while not self._stopping.is_set():
            try:
                handles = app.enqueue_many(jobs)
            except OutcomeUnknown:
                self.record.unknown += 1
                self._ask_for(app, numbers)
                return
            except (FaultlineError, psycopg.Error) as error:
                self._pause_after(error)
            else:
                self._acknowledge(*(handle.id for handle in handles))
                return

    def _in_transaction(self, app: Faultline) -> None:
        """In a transaction of our own: once the commit was sent, only the database knows."""
        numbers, jobs = self._many(app)
        sent = False
        try:
            with app.database.connect() as connection:
                connection.execute("begin")
                handles = app.using(connection).enqueue_many(jobs)
                sent = True
                connection.execute("commit")
        except (FaultlineError, psycopg.Error):
            if sent:
                self.record.unknown += 1
                self._ask_for(app, numbers)
        else:
            self._acknowledge(*(handle.id for handle in handles))

    def _ask_for(self, app: Faultline, numbers: list[int]) -> None:
        there = _asked(lambda: app.database.run(audit.there(numbers)))
        if not there:
            self.record.absent += numbers
        elif len(there) == len(numbers):
            self.record.found += len(numbers)
            self._acknowledge(*there.values())
        else:
            self.record.halves += numbers

    def _with_id(self, app: Faultline) -> None:
        """An id of our own: a lost answer is asked for by it, and what is not there is sent again under it."""
        job_id = self._ids.new()
        _, job = self._job(app, id=job_id)
        while not self._stopping.is_set():
            try:
                app.enqueue_many([job])
            except (OutcomeUnknown, psycopg.Error, FaultlineError) as error:
                if not isinstance(error, OutcomeUnknown):
                    self._pause_after(error)
                    continue
                self.record.unknown += 1
                _, there = _asked(lambda: app.database.run(views.final_states([job_id])))
                if there:
                    self.record.found += 1
                    self._acknowledge(job_id)
                    return
            else:
                self._acknowledge(job_id)
                return

    def _with_key(self, app: Faultline) -> None:
        """A key: after a lost answer it is simply sent again, and gives the job that it gave before."""
        _, job = self._job(app, idempotency_key=f"soak {self._next}")
        while not self._stopping.is_set():
            try:
                (handle,) = app.enqueue_many([job])
            except OutcomeUnknown:
                self.record.unknown += 1
            except (FaultlineError, psycopg.Error) as error:
                self._pause_after(error)
            else:
                self.record.found += not handle.created
                self._acknowledge(handle.id)
                return

    def _acknowledge(self, *job_ids: UUID) -> None:
        self._recording.saw(job_ids, "queued")
        self.record.acknowledged += len(job_ids)

    def _many(self, app: Faultline) -> tuple[list[int], list[Submission]]:
        pairs = [self._job(app) for _ in range(self._chance.randint(2, BULK_MAX))]
        return [number for number, _ in pairs], [job for _, job in pairs]

    def _job(self, app: Faultline, **options: Any) -> tuple[int, Submission]:
        number, self._next = self._next, self._next + 1
        name = self._kind()
        more: dict[str, Any] = {"seconds": self._seconds(name)} if name in WITH_SECONDS else {}
        if name in limits.SHARES:
            # With short leases only: while the holder of a permit is dead, its group waits.
            (group,) = self._chance.choices(tuple(limits.GROUPS), weights=tuple(limits.GROUPS.values()))
            more = {"tenant": group, "seconds": self._chance.choice(limits.SECONDS)}
        elif self._chance.random() < _LONG_LEASES:
            options["lease_seconds"] = LONG_LEASE_SECONDS
        return number, replace(app.tasks[name].bind(n=number, **more), **options)

    def _kind(self) -> str:
        """By chance, or what is due: some kinds come every so many seconds."""
        now = time.monotonic()
        for name, due in self._due.items():
            if now >= due:
                self._due[name] = now + mischief.EVERY_SECONDS[mischief.TASKS[name]] * self._chance.uniform(0.7, 1.3)
                return name
        (name,) = self._chance.choices(tuple(self._kinds), weights=tuple(self._kinds.values()))
        return name

    def _seconds(self, name: str) -> float:
        if name in mischief.TASKS:
            return LEASE_SECONDS * self._chance.uniform(1.2, 2.5)
        return self._chance.choices(_WAITS_SECONDS, weights=_WAITS_WEIGHTS)[0]

    def _pause_after(self, error: Exception) -> None:
        """Nothing was done, for a reason of the moment: a server that is away, a cancelled statement, a locked table."""
        if isinstance(error, JobRejected | KeyConflict):
            raise error
        self.record.failed[type(error).__name__] += 1
        self._stopping.wait(_PAUSE_SECONDS)


def _asked(question: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Ask until there is an answer. It changes nothing, so it may be asked as often as it takes."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            return question()
        except (FaultlineError, psycopg.Error) as error:
            if time.monotonic() > give_up:
                raise FaultlineError(f"the database gave no answer for {seconds:g} s: {error}") from error
            time.sleep(_PAUSE_SECONDS)
