"""Keep this worker's leases alive. A lease that cannot be renewed in time is let go, never stretched.

On a thread and a connection of its own, so that a busy event loop does not starve it. The same connection carries the
worker's sign of life and the advisory lock that dies with it, by which others notice a killed worker within seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.model import Reason
from faultline.store import queue
from faultline.store.database import WorkerSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from faultline.core.host import Host
    from faultline.core.model import Lease
    from faultline.runtime.hold import Hold
    from faultline.runtime.tally import Tally

BEAT_SECONDS = 1.0
_WATCH_SECONDS = 0.5
_BATCH_MAX = 1000
_PAUSE_MIN, _PAUSE_MAX = 0.1, 2.0
_TELL_PAUSE_MAX = 60.0


class Heartbeat:
    """All leases of one worker process."""

    def __init__(
        self,
        dsn: str,
        worker_id: str,
        queues: Iterable[str],
        host: Host,
        tally: Tally,
    ) -> None:
        self._session = WorkerSession(dsn, lock=worker_id, host=host)
        self._worker_id = worker_id
        self._queues = list(queues)
        self._monotonic = host.monotonic
        self._seconds = host.seconds
        self._tally = tally
        self._tell_at = -1e9
        self._tell_pause = BEAT_SECONDS
        self._clock_ahead: float | None = None
        self._changed = threading.Lock()
        self._holds: dict[Lease, Hold] = {}
        self._sleeping: frozenset[str] = frozenset()
        self._beat_at = -1e9
        self._failures = 0
        self._pulse = (host.pulse or Thread)(self.tick, self.watch)

    def start(self) -> None:
        self._pulse.start()

    async def stop(self) -> None:
        """Stop beating and take the worker off the list. Leases that are left run out by themselves."""
        await self._pulse.stop(self._leave)

    def _leave(self) -> None:
        try:
            self._tell(self._monotonic(), at_last=True)
            self._session.run(queue.leave(self._worker_id))
        except Exception as error:  # noqa: BLE001 - its row is noticed to be old
            events.emit("worker_leave_failed", worker=self._worker_id, error=str(error))
        self._session.close()

    def keep(self, holds: Sequence[Hold]) -> None:
        with self._changed:
            self._holds.update({hold.lease: hold for hold in holds})
        if min([hold.lease.lease_seconds for hold in holds], default=inf) < 3 * BEAT_SECONDS:
            # To be renewed before the next beat.
            self._pulse.wake()

    def drop(self, holds: Iterable[Hold]) -> None:
        with self._changed:
            for hold in holds:
                self._holds.pop(hold.lease, None)

    def sleep_on(self, queues: frozenset[str]) -> None:
        """Tell the database, now, on which queues this worker wants to be woken."""
        with self._changed:
            if queues != self._sleeping:
                self._sleeping = queues
                self._beat_at = -1e9
                self._pulse.wake()

    def lose(self, job_id: object, reason: str) -> None:
        """Let go of one job's lease: somebody said that it is cancelled."""
        with self._changed:
            lost = [hold for hold in self._holds.values() if hold.lease.job_id == job_id]
        for hold in lost:
            self._lost(hold, reason)

    @property
    def held(self) -> int:
        return len(self._holds)

    @property
    def reconnects(self) -> int:
        return max(0, self._session.reconnects)

    @property
    def connected(self) -> bool:
        return self._session.connected

    @property
    def watched(self) -> bool:
        """The advisory lock is held, so others may notice this worker's death; so may this one notice theirs."""
        return self._session.locked

    def watch(self) -> None:
        """Let go in time also while a beat hangs, on a wire whose other end says nothing; and cut that wire."""
        if self._let_go(self._monotonic()):
            self._session.interrupt()

    def tick(self) -> float:
        """Do what is due. Answers with the seconds until something will be."""
        now = self._monotonic()
        self._let_go(now)
        try:
            self._beat(now)
            self._renew(now)
            self._tell(now)
        except Exception as error:  # noqa: BLE001 - a heart that stops for any of them loses every lease from then on
            self._failures += 1
            self._tally.database_failed()
            if self._failures == 1:
                events.emit("heartbeat_failed", worker=self._worker_id, error=str(error))
            return min(_PAUSE_MAX, _PAUSE_MIN * 2.0 ** min(self._failures, 10), self._until_distrust())
        self._failures = 0
        with self._changed:
            renewals = [hold.renew_at for hold in self._holds.values()]
            due = min([*renewals, self._beat_at + BEAT_SECONDS])
        return max(_PAUSE_MIN / 2, due - self._monotonic())

    def _until_distrust(self) -> float:
        now = self._monotonic()
        with self._changed:
            return max(0.01, min([hold.trusted_until - now for hold in self._holds.values()], default=BEAT_SECONDS))

    def _let_go(self, now: float) -> bool:
        with self._changed:
            expired = [hold for hold in self._holds.values() if now >= hold.trusted_until and not hold.in_transaction]
        for hold in expired:
            self._lost(hold, Reason.LEASE_EXPIRED)
        return bool(expired)

    def _beat(self, now: float) -> None:
        with self._changed:
            sleeping, due = self._sleeping, now >= self._beat_at + BEAT_SECONDS
        if not due:
            return
        # Connect first: whether somebody can watch over us depends on the connection.
        self._session.connect()
        database = self._session.run(
            queue.beat(
                self._worker_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=_version(),
                queues=self._queues,
                sleeping=sorted(sleeping) if self._session.direct else [],
                watched=self._session.locked,
                leases=len(self._holds),
                clock_ahead_seconds=self._clock_ahead,
            )
        )
        self._tally.set_clock(database, self._monotonic())
        self._clock_ahead = self._seconds() - database.timestamp()
        with self._changed:
            if sleeping == self._sleeping:
                self._beat_at = now

    def _tell(self, now: float, *, at_last: bool = False) -> None:
        """Tell what was counted. It must not cost the leases anything: what the database refuses is told more rarely."""
        rows = self._tally.changed() if at_last or now >= self._tell_at else []
        if not rows:
            return
        self._tell_at = now + self._tell_pause
        self._tell_pause = min(self._tell_pause * 2, _TELL_PAUSE_MAX)
        self._session.run(queue.tally(self._worker_id, rows))
        self._tally.settled()
        self._tell_pause = BEAT_SECONDS

    def _renew(self, now: float) -> None:
        with self._changed:
            due = [hold for hold in self._holds.values() if now >= hold.renew_at]
        for start in range(0, len(due), _BATCH_MAX):
            batch = {hold.lease: hold for hold in due[start : start + _BATCH_MAX]}
            asked_at = self._monotonic()
            settled = self._session.run(queue.renew(list(batch)))
            for refusal in settled.stale:
                hold = batch.pop(refusal.lease)
                hold.counts.refuse("renew", refusal.reason)
                self._lost(hold, refusal.reason)
            for lease in settled.busy:
                if not batch[lease].in_transaction:
                    # Somebody is deciding about this job right now. Not renewed: asked again soon.
                    batch.pop(lease)
            for hold in batch.values():
                hold.renewed_at = asked_at
            self._tally.renewed += len(batch)
            for lease in batch if events.are_detailed() else ():
                events.emit_detail("lease_renewed", job_id=lease.job_id, token=lease.fencing_token)

    def _lost(self, hold: Hold, reason: str) -> None:
        self.drop([hold])
        if hold.lose(reason):
            events.emit("lease_lost", job_id=hold.lease.job_id, token=hold.lease.fencing_token, reason=reason)


class Thread:
    """A pulse in a thread of its own, which a busy event loop does not starve; and a second one that watches over it."""

    def __init__(self, tick: Callable[[], float], watch: Callable[[], None]) -> None:
        self._tick = tick
        self._watch = watch
        self._changed = threading.Condition()
        self._stopping = self._woken = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faultline-heartbeat", daemon=True)
        self._watcher = threading.Thread(target=self._watch_over, name="faultline-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._watcher.start()

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    async def stop(self, last: Callable[[], None]) -> None:
        self._stopping = True
        self._stopped.set()
        self.wake()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(last)

    def _watch_over(self) -> None:
        while not self._stopped.wait(_WATCH_SECONDS):
            self._watch()

    def _run(self) -> None:
        while not self._stopping:
            seconds = self._tick()
            with self._changed:
                if not self._woken:
                    self._changed.wait(seconds)
                self._woken = False


@cache
def _version() -> str:
    try:
        return version("faultline-queue")
    except PackageNotFoundError:
        return "unknown"
