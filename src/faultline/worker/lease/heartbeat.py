"""Keep this worker's leases alive. A lease that cannot be renewed in time is let go, never stretched.

The heartbeat has its own thread and connection, so that a busy event loop does not starve it. The connection also holds an
advisory lock that ends with it: so other workers notice a killed worker within seconds.

While the heartbeat has lost its connection and cannot get another, it uses those of the event loop (`stand_in`), so that a
live worker is not taken for dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.build import version
from faultline.core.errors import DatabaseUnavailable
from faultline.core.model import Reason
from faultline.core.pause import Pause, doubled
from faultline.core.running import running
from faultline.store import verbs
from faultline.store.connection.heartbeat_session import WorkerSession
from faultline.store.reads import views
from faultline.worker.lease.cancellation_checks import CancellationChecks
from faultline.worker.lease.heartbeat_thread import Thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime
    from uuid import UUID

    from faultline.core.host import Host
    from faultline.core.model import Lease
    from faultline.store.statement import Statement
    from faultline.worker.base.counters import Tally
    from faultline.worker.companion.memory import Shared
    from faultline.worker.lease.held_lease import HeldLease

    #: Statements, each sent its answer; and a function that runs one on another connection than the heartbeat's.
    Talk = Generator[Statement[Any], Any, None]
    Run = Callable[[Statement[Any]], Awaitable[Any]]

BEAT_SECONDS = 1.0
#: If the watching thread looks so late, the process did not run for a while: stopped, starved, or the machine slept.
_STALL_SECONDS = 2.0
#: How long the database then has to answer which leases are still good.
_CHANCE_SECONDS = 3.0
_BLOCKED_SECONDS = 2.0
_BATCH_MAX = 1000
_PAUSE_MIN, _PAUSE_MAX = 0.1, 2.0
#: While the server answers: heartbeats must go on, whatever else is refused.
_PAUSE_REFUSED = 0.5
_REPORT_PAUSE_MAX = 60.0
#: A worker may judge silent ones if its own heartbeats were answered for the first, with no gap longer than the second.
_MAY_JUDGE_SECONDS, _UNHEARD_SECONDS = 3.0, 2.5
#: The database's clock was set forward if it is ahead of what can have passed by the first. Then this worker reaps nothing
#: for the second: the other workers need a heartbeat to notice it, too, and to renew their leases.
_STEP_SECONDS, _AFTER_STEP_SECONDS = 0.5, 5.0
#: While heartbeats are refused, or wait for a row that somebody has locked, nobody says what time it is. Then leases are
#: renewed this often: within the time that the others reap nothing after a step.
_RENEW_UNHEARD_SECONDS = 2.0
#: After so long without an answer the heartbeat takes the server for frozen and cuts the wire: a quarter of the shortest
#: lease, within these bounds. So a failover of some seconds loses no lease that is a third over.
_ANSWER_SECONDS_MIN, _ANSWER_SECONDS_MAX = 1.5, 4.0


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
        self._session = WorkerSession(
            dsn, lock=worker_id, seconds=_ANSWER_SECONDS_MAX, answer_seconds=self._answer_seconds, host=host
        )
        self._worker_id = worker_id
        self._version = version()  # read here: the first beat must not wait for it
        self._queues = list(queues)
        self._monotonic = host.monotonic
        self._seconds = host.seconds
        self._tally = tally
        self._report_at = -1e9
        self._report_pause = Pause(BEAT_SECONDS, _REPORT_PAUSE_MAX)
        self._clock_ahead: float | None = None
        self._changed = threading.Lock()
        self._holds: dict[Lease, HeldLease] = {}
        self._doubts = CancellationChecks()
        self._sleeping: frozenset[str] = frozenset()
        self._beat_at = -1e9
        #: Since when every heartbeat was answered, and when the last one was.
        self._heard_since, self._heard_at = inf, -inf
        #: The answer to the last heartbeat, and when that was sent.
        self._database_time: tuple[datetime, float] | None = None
        self._stepped_at = -inf
        self._failures = 0
        #: Why the worker's row could not be removed at its end.
        self._not_left: Exception | None = None
        #: The memory that a companion process reads; None: there is none.
        self.shared: Shared | None = None
        #: The event loop that runs the jobs, if there is a companion.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._watched_at: float | None = None
        self._awake_since = -inf
        self._pulse = (host.pulse or Thread)(self.tick, self.watch)

    def start(self) -> None:
        self._pulse.start()

    async def stop(self, run: Run | None = None) -> None:
        """Stop beating and remove the worker's row. Leases that are left expire."""
        try:
            await self._pulse.stop(self._leave)
        except TimeoutError as error:
            self._not_left = error
        try:
            if self._not_left is not None and run is not None:
                async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                    await _say_over(run, self._last_words())
                self._not_left = None
        except Exception as error:  # noqa: BLE001 - others will notice that its row is old
            self._not_left = error
        if self._not_left is not None:
            events.emit("worker_leave_failed", worker=self._worker_id, error=str(self._not_left))

    def _leave(self) -> None:
        self._not_left = DatabaseUnavailable("the heartbeat has no connection")
        try:
            if self._session.connected:
                self._say(self._last_words())
                self._not_left = None
        except Exception as error:  # noqa: BLE001 - `stop` tries another connection
            self._not_left = error
        self._session.close()

    def _last_words(self) -> Talk:
        yield from self._report(self._monotonic(), at_last=True)
        yield verbs.unregister_worker(self._worker_id)

    def keep(self, holds: Sequence[HeldLease]) -> None:
        with self._changed:
            self._holds.update({hold.lease: hold for hold in holds})
            is_doubted = self._doubts.took(hold.lease for hold in holds)
        if is_doubted or min([hold.lease.lease_seconds for hold in holds], default=inf) < 3 * BEAT_SECONDS:
            # Look, or renew it, before the next beat.
            self._pulse.wake()

    def drop(self, holds: Sequence[HeldLease]) -> None:
        with self._changed:
            for hold in holds:
                self._holds.pop(hold.lease, None)
            if self.shared is not None:
                self.shared.leave(holds)

    def sleep_on(self, queues: frozenset[str]) -> None:
        """Store at once on which queues this worker wants to be woken."""
        with self._changed:
            if queues != self._sleeping:
                self._sleeping = queues
                self._beat_at = -1e9
                self._pulse.wake()

    def doubt(self, job_ids: AbstractSet[UUID]) -> None:
        """A notification says that these jobs are cancelled. Ask the database at once whether their leases are lost."""
        with self._changed:
            new = self._doubts.add(job_ids, self._holds)
        if new:
            self._pulse.wake()

    @property
    def held(self) -> int:
        return len(self._holds)

    def holds(self) -> list[HeldLease]:
        with self._changed:
            return list(self._holds.values())

    @property
    def reconnects(self) -> int:
        return max(0, self._session.reconnects)

    @property
    def watched(self) -> bool:
        """The advisory lock is held, so other workers can notice this worker's death."""
        return self._session.locked

    def behind(self) -> bool:
        """Held leases may have expired: the process did not run for a while and has not renewed them yet, or the database's
        clock was set forward, and with it those of other workers.
        """
        now = self._monotonic()
        if now < self._stepped_at + _AFTER_STEP_SECONDS:
            return True
        with self._changed:
            holds = list(self._holds.values())
        late = [hold for hold in holds if now >= hold.trusted_until and not (hold.completed or hold.in_transaction)]
        return any(not self._is_released(hold) for hold in late)

    def may_judge(self) -> bool:
        """The server has heard this worker for a while, so it would have heard others too: a silent one is really silent."""
        now = self._monotonic()
        return now >= self._heard_since + _MAY_JUDGE_SECONDS and now < self._heard_at + _UNHEARD_SECONDS

    def database_time_max(self) -> datetime | None:
        """What the database's clock can say at most, unless it was set: counted from before the last answered heartbeat."""
        if self._database_time is None:
            return None
        said, asked_at = self._database_time
        return said + timedelta(seconds=self._monotonic() - asked_at)

    def _notice_step(self, database: datetime, asked_at: float) -> None:
        """If the clock was set forward, all leases have expired, and all workers seem silent until their next heartbeat.

        Renew at once, and reap nothing for a while: the others do the same.
        """
        latest = self.database_time_max()
        if latest is not None and database > latest + timedelta(seconds=_STEP_SECONDS):
            self._stepped_at = self._monotonic()
            events.emit("clock_stepped", worker=self._worker_id, seconds=round((database - latest).total_seconds(), 1))
        # Last: a reap reads it first, and then asks whether it is withheld.
        self._database_time = (database, asked_at)

    def watch(self) -> None:
        """Let go in time also while a beat hangs on a silent wire, and cut that wire."""
        now = self._monotonic()
        self._notice_stall(now)
        self._watched_at = now
        if self.shared is not None:
            self.shared.watch_ticked(now)
            silent = now - max(self.shared.loop_at, self._awake_since) > _BLOCKED_SECONDS
            self.shared.blocked_by(self._blocker() if silent else None, now)
        if self._let_go(now):
            self._session.interrupt()

    def _notice_stall(self, now: float) -> None:
        """After a stall, ask the database before letting go: it accepts a late renewal until the job is reaped."""
        watched_at = self._watched_at
        if watched_at is not None and now - watched_at > _STALL_SECONDS and self._awake_since <= watched_at:
            self._awake_since = now
            if self.shared is not None:
                with self._changed:
                    for hold in self._holds.values():
                        hold.renewed_at = max(hold.renewed_at, self.shared.renewed_at(hold))

    def _blocker(self) -> HeldLease | None:
        """The job whose code the silent loop runs, seen from this thread. None: no job's, or that of an asyncio task which
        a job has started, where Python (before 3.12) does not say in which context a task runs.
        """
        task = None if self.loop is None else asyncio.current_task(self.loop)
        if task is None:
            return None
        context_of: Any = getattr(task, "get_context", None)
        starter = None if context_of is None else context_of().get(running)
        with self._changed:
            return next((hold for hold in self._holds.values() if hold.attempt is task or hold is starter), None)

    def _loop_is_overdue(self, now: float) -> bool:
        """A worker whose loop is silent for too long counts as dead, although this thread runs."""
        if self.shared is None:
            return False
        silent = now - max(self.shared.loop_at, self._awake_since)
        return silent > _BLOCKED_SECONDS and silent > self.shared.blocking_allowed()

    def _is_released(self, hold: HeldLease) -> bool:
        """The companion releases jobs that were not started: do not renew them, and do not call them lost."""
        return self.shared is not None and hold.began_at is None and hold.epoch != self.shared.raised

    def tick(self) -> float:
        """Do what is due. Returns the seconds until the next thing is."""
        now = self._monotonic()
        self._notice_stall(now)
        if self._loop_is_overdue(now):
            return BEAT_SECONDS
        if self._failures:
            # The database did not answer. Otherwise ask first: perhaps only this process was late.
            self._let_go(now)
        try:
            self._do(now)
        except Exception as error:  # noqa: BLE001 - a heartbeat that ends loses every lease
            self._failures += 1
            self._heard_since = inf
            self._tally.database_failed()
            if self._failures == 1:
                events.emit("heartbeat_failed", worker=self._worker_id, error=str(error))
            longest = _PAUSE_REFUSED if self._session.connected else _PAUSE_MAX
            return min(doubled(_PAUSE_MIN, self._failures + 1, longest), self._until_distrust())
        self._failures = 0
        self._let_go(now)
        with self._changed:
            renewals = [hold.renew_at for hold in self._holds.values() if not hold.completed]
            due = min([*renewals, *self._doubts.next_due(), self._beat_at + BEAT_SECONDS])
        return max(_PAUSE_MIN / 2, due - self._monotonic())

    def _do(self, now: float) -> None:
        """One refused part does not stop the others: a locked table must not cost leases."""
        refused: Exception | None = None
        for part in (self._beat, self._look, self._renew, self._report):
            try:
                self._say(part(now))
            except Exception as error:
                if not self._session.connected:
                    raise
                refused = refused or error
        if refused is not None:
            raise refused

    def _say(self, talk: Talk) -> None:
        # Connect first: a statement may depend on the connection's lock.
        self._session.connect()
        answer = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = self._session.run(talk.send(answer))

    async def stand_in(self, run: Run) -> None:
        """While the heartbeat has no connection, send what is due over those of the event loop.

        Meanwhile this worker judges no others, and they do not watch it: its advisory lock is gone.
        """
        while True:
            await asyncio.sleep(_PAUSE_REFUSED)
            if not self._failures or self._session.connected:
                continue
            now = self._monotonic()
            for part in (self._beat, self._look, self._renew):
                # As in `_do`: one refused or waiting part does not stop the others.
                try:
                    async with asyncio.timeout(self._answer_seconds()):
                        await _say_over(run, part(now))
                except Exception:  # noqa: BLE001 - the heartbeat has logged it, and goes on trying
                    self._tally.database_failed()

    def _answer_seconds(self) -> float:
        with self._changed:
            shortest = min([hold.lease.lease_seconds for hold in self._holds.values()], default=inf)
        return min(max(shortest / 4, _ANSWER_SECONDS_MIN), _ANSWER_SECONDS_MAX)

    def _until_distrust(self) -> float:
        now = self._monotonic()
        with self._changed:
            distrust_at = min([hold.trusted_until for hold in self._holds.values()], default=now + BEAT_SECONDS)
        return max(0.01, max(distrust_at, self._awake_since + _CHANCE_SECONDS) - now)

    def _let_go(self, now: float) -> bool:
        if now < self._awake_since + _CHANCE_SECONDS:
            return False
        with self._changed:
            expired = [hold for hold in self._holds.values() if now >= hold.trusted_until and not hold.in_transaction]
        expired = [hold for hold in expired if not self._is_released(hold)]
        for hold in expired:
            self._lost(hold, Reason.LEASE_EXPIRED, distrusted=True)
        return bool(expired)

    def _beat(self, now: float) -> Talk:
        with self._changed:
            sleeping, due = self._sleeping, now >= self._beat_at + BEAT_SECONDS
        if not due:
            return
        own = self._session.connected
        asked_at = self._monotonic()
        database = yield verbs.heartbeat(
            self._worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            queues=self._queues,
            sleeping=sorted(sleeping) if self._session.direct else [],
            watched=own and self._session.locked,
            leases=len(self._holds),
            clock_ahead_seconds=self._clock_ahead,
        )
        self._notice_step(database, asked_at)
        self._tally.set_clock(database, self._monotonic())
        self._clock_ahead = self._seconds() - database.timestamp()
        if own:
            if self._heard_since > now or now >= self._heard_at + _UNHEARD_SECONDS:
                self._heard_since = now
            self._heard_at = now
        if self.shared is not None:
            self.shared.beat_answered(now)
        with self._changed:
            if sleeping == self._sleeping:
                self._beat_at = now

    def _report(self, now: float, *, at_last: bool = False) -> Talk:
        """Store the counts. It must not cost leases: after a refusal it is done more rarely."""
        rows = self._tally.changed() if at_last or now >= self._report_at else []
        if not rows:
            return
        self._report_at = now + self._report_pause.next()
        yield verbs.tally(self._worker_id, rows)
        self._tally.stored()
        self._report_pause.reset()

    def _look(self, now: float) -> Talk:
        """Ask about doubted leases."""
        with self._changed:
            asked = self._doubts.due(now, self._holds)
        for start in range(0, len(asked), _BATCH_MAX):
            batch = asked[start : start + _BATCH_MAX]
            lost = yield views.lost(batch)
            with self._changed:
                self._doubts.answered(batch, now)
                holds = {lease: self._holds[lease] for lease in lost if lease in self._holds}
            for lease, hold in holds.items():
                self._lost(hold, lost[lease])

    def _renew(self, now: float) -> Talk:
        # Also what the database's clock has overtaken, or may have.
        overtaken_at = max(self._stepped_at, now - _RENEW_UNHEARD_SECONDS if self._failures else -inf)
        with self._changed:
            held = [
                hold
                for hold in self._holds.values()
                if (now >= hold.renew_at or hold.renewed_at < overtaken_at) and not hold.completed
            ]
        due = [hold for hold in held if not self._is_released(hold)]
        for start in range(0, len(due), _BATCH_MAX):
            batch = {hold.lease: hold for hold in due[start : start + _BATCH_MAX]}
            asked_at = self._monotonic()
            unwritten = yield verbs.renew(list(batch))
            for refusal in unwritten.stale:
                hold = batch.pop(refusal.lease)
                hold.counts.refuse("renew", refusal.reason)
                self._lost(hold, refusal.reason)
            for lease in unwritten.busy:
                # Not renewed; ask again soon. If the job's own transaction holds the row, nobody else can claim it, and the
                # lease is trusted.
                hold = batch.pop(lease)
                if hold.in_transaction:
                    hold.renewed_at = hold.busy_at = asked_at
            for hold in batch.values():
                hold.renewed(asked_at)
            self._tally.renewed += len(batch)
            for lease in batch if events.are_detailed() else ():
                events.emit_detail("lease_renewed", job_id=lease.job_id, token=lease.fencing_token)

    def _lost(self, hold: HeldLease, reason: str, *, distrusted: bool = False) -> None:
        self.drop([hold])
        if hold.lose(reason, distrusted=distrusted):
            events.emit("lease_lost", job_id=hold.lease.job_id, token=hold.lease.fencing_token, reason=reason)


async def _say_over(run: Run, talk: Talk) -> None:
    answer = None
    with contextlib.suppress(StopIteration):
        while True:
            answer = await run(talk.send(answer))
