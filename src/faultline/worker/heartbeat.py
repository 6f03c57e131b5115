"""Keep this worker's leases alive. A lease that cannot be renewed in time is let go, never stretched.

On a thread and a connection of its own, so that a busy event loop does not starve it. The same connection carries the
worker's sign of life and the advisory lock that dies with it, by which others notice a killed worker within seconds.

What is said does not depend on who carries it: while this connection is lost and no other is to be had, it goes over those
that the event loop has left (`stand_in`), so that a worker that lives is heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from math import inf
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.backoff import Pause, doubled
from faultline.core.build import version
from faultline.core.errors import DatabaseUnavailable
from faultline.core.model import Reason
from faultline.store import verbs
from faultline.store.reads import views
from faultline.store.session import WorkerSession
from faultline.worker.doubts import Doubts
from faultline.worker.pulse import Thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from faultline.core.host import Host
    from faultline.core.model import Lease
    from faultline.store.statement import Statement
    from faultline.worker.hold import Hold
    from faultline.worker.shared import Shared
    from faultline.worker.tally import Tally

    #: Statements, each followed by its answer; and what sends one over a connection that is not the heartbeat's own.
    Talk = Generator[Statement[Any], Any, None]
    Run = Callable[[Statement[Any]], Awaitable[Any]]

BEAT_SECONDS = 1.0
#: When the watching thread looks so late, this process did not run for a while: stopped, starved, or the machine slept.
_STALL_SECONDS = 2.0
#: How long the database may take afterwards to say which leases are still good.
_CHANCE_SECONDS = 3.0
_BLOCKED_SECONDS = 2.0
_BATCH_MAX = 1000
_PAUSE_MIN, _PAUSE_MAX = 0.1, 2.0
#: While the server answers: heartbeats show that this worker lives, whatever is refused beside them.
_PAUSE_REFUSED = 0.5
_TELL_PAUSE_MAX = 60.0
#: Who was heard for so long, without a refusal and with no pause longer than the second, can judge others by their silence.
_SETTLED_IN_SECONDS, _UNHEARD_SECONDS = 3.0, 2.5
#: After so long without an answer the server is taken for frozen and the wire is cut: a quarter of the shortest lease,
#: within these bounds. So a failover of some seconds costs no lease that has a third of its time behind it.
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
        self._version = version()  # read here, not while others wait for the first beat
        self._queues = list(queues)
        self._monotonic = host.monotonic
        self._seconds = host.seconds
        self._tally = tally
        self._tell_at = -1e9
        self._tell_pause = Pause(BEAT_SECONDS, _TELL_PAUSE_MAX)
        self._clock_ahead: float | None = None
        self._changed = threading.Lock()
        self._holds: dict[Lease, Hold] = {}
        self._doubts = Doubts()
        self._sleeping: frozenset[str] = frozenset()
        self._beat_at = -1e9
        #: Since when heartbeats were answered one after the other, and when the last one was.
        self._heard_since, self._heard_at = inf, -inf
        self._failures = 0
        #: Why the worker could not be taken off the list at its end.
        self._not_left: Exception | None = None
        #: The memory that a companion process looks at; None where there is none.
        self.shared: Shared | None = None
        self._watched_at: float | None = None
        self._awake_since = -inf
        self._pulse = (host.pulse or Thread)(self.tick, self.watch)

    def start(self) -> None:
        self._pulse.start()

    async def stop(self, run: Run | None = None) -> None:
        """Stop beating and take the worker off the list. Leases that are left run out by themselves."""
        try:
            await self._pulse.stop(self._leave)
        except TimeoutError as error:
            self._not_left = error
        try:
            if self._not_left is not None and run is not None:
                async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                    await _say_over(run, self._last_words())
                self._not_left = None
        except Exception as error:  # noqa: BLE001 - its row is noticed to be old
            self._not_left = error
        if self._not_left is not None:
            events.emit("worker_leave_failed", worker=self._worker_id, error=str(self._not_left))

    def _leave(self) -> None:
        self._not_left = DatabaseUnavailable("the heartbeat has no connection")
        try:
            if self._session.connected:
                self._say(self._last_words())
                self._not_left = None
        except Exception as error:  # noqa: BLE001 - there may be another way
            self._not_left = error
        self._session.close()

    def _last_words(self) -> Talk:
        yield from self._tell(self._monotonic(), at_last=True)
        yield verbs.leave(self._worker_id)

    def keep(self, holds: Sequence[Hold]) -> None:
        with self._changed:
            self._holds.update({hold.lease: hold for hold in holds})
        if min([hold.lease.lease_seconds for hold in holds], default=inf) < 3 * BEAT_SECONDS:
            # To be renewed before the next beat.
            self._pulse.wake()

    def drop(self, holds: Sequence[Hold]) -> None:
        with self._changed:
            for hold in holds:
                self._holds.pop(hold.lease, None)
            if self.shared is not None:
                self.shared.leave(holds)

    def sleep_on(self, queues: frozenset[str]) -> None:
        """Tell the database, now, on which queues this worker wants to be woken."""
        with self._changed:
            if queues != self._sleeping:
                self._sleeping = queues
                self._beat_at = -1e9
                self._pulse.wake()

    def doubt(self, job_ids: AbstractSet[UUID]) -> None:
        """Somebody says that these jobs are cancelled. Ask the database, now, whether our leases on them are lost."""
        with self._changed:
            new = self._doubts.add(job_ids, self._holds)
        if new:
            self._pulse.wake()

    @property
    def held(self) -> int:
        return len(self._holds)

    def holds(self) -> list[Hold]:
        with self._changed:
            return list(self._holds.values())

    @property
    def reconnects(self) -> int:
        return max(0, self._session.reconnects)

    @property
    def watched(self) -> bool:
        """The advisory lock is held, so others may notice this worker's death; so may this one notice theirs."""
        return self._session.locked

    def behind(self) -> bool:
        """Leases in its hands may have run out: this process did not run for a while, and has yet to renew them."""
        now = self._monotonic()
        with self._changed:
            holds = list(self._holds.values())
        late = [hold for hold in holds if now >= hold.trusted_until and not (hold.settled or hold.in_transaction)]
        return any(not self._is_given_back(hold) for hold in late)

    def settled_in(self) -> bool:
        """The server has heard this worker for a while, so it would have heard others too: who is silent is so by itself."""
        now = self._monotonic()
        return now >= self._heard_since + _SETTLED_IN_SECONDS and now < self._heard_at + _UNHEARD_SECONDS

    def watch(self) -> None:
        """Let go in time also while a beat hangs, on a wire whose other end says nothing; and cut that wire."""
        now = self._monotonic()
        self._notice_stall(now)
        self._watched_at = now
        if self.shared is not None:
            self.shared.watch_ticked(now)
        if self._let_go(now):
            self._session.interrupt()

    def _notice_stall(self, now: float) -> None:
        """After a stall the database is asked before anything is let go: it takes a late renewal until the job is reaped."""
        watched_at = self._watched_at
        if watched_at is not None and now - watched_at > _STALL_SECONDS and self._awake_since <= watched_at:
            self._awake_since = now
            if self.shared is not None:
                with self._changed:
                    for hold in self._holds.values():
                        hold.renewed_at = max(hold.renewed_at, self.shared.renewed_at(hold))

    def _loop_is_overdue(self, now: float) -> bool:
        """A worker whose loop is silent for longer than allowed is not alive, whatever this thread could say."""
        if self.shared is None:
            return False
        silent = now - max(self.shared.loop_at, self._awake_since)
        return silent > _BLOCKED_SECONDS and silent > self.shared.silence_allowed()

    def _is_given_back(self, hold: Hold) -> bool:
        """The companion gives back what was not begun: it is not to be renewed, and is not lost to somebody else."""
        return self.shared is not None and hold.began_at is None and hold.epoch != self.shared.raised

    def tick(self) -> float:
        """Do what is due. Returns the seconds until something will be."""
        now = self._monotonic()
        self._notice_stall(now)
        if self._loop_is_overdue(now):
            return BEAT_SECONDS
        if self._failures:
            # It was asked and did not answer. Otherwise the question comes first: we may only have been late ourselves.
            self._let_go(now)
        try:
            self._do(now)
        except Exception as error:  # noqa: BLE001 - a heart that stops for any of them loses every lease from then on
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
            renewals = [hold.renew_at for hold in self._holds.values() if not hold.settled]
            due = min([*renewals, *self._doubts.next_due(), self._beat_at + BEAT_SECONDS])
        return max(_PAUSE_MIN / 2, due - self._monotonic())

    def _do(self, now: float) -> None:
        """One part that is refused does not keep the others from being done: a locked table must not cost leases."""
        refused: Exception | None = None
        for part in (self._beat, self._look, self._renew, self._tell):
            try:
                self._say(part(now))
            except Exception as error:
                if not self._session.connected:
                    raise
                refused = refused or error
        if refused is not None:
            raise refused

    def _say(self, talk: Talk) -> None:
        # Connect first: whether somebody can watch over us depends on the connection.
        self._session.connect()
        answer = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = self._session.run(talk.send(answer))

    async def stand_in(self, run: Run) -> None:
        """While the connection of the heartbeat is lost, and another one refused, say over others what is due.

        Nobody is judged by this worker meanwhile, and this one is not watched: its advisory lock is gone.
        """
        while True:
            await asyncio.sleep(_PAUSE_REFUSED)
            if not self._failures or self._session.connected:
                continue
            now = self._monotonic()
            for part in (self._beat, self._look, self._renew):
                # As in `_do`: one that is refused, or has to wait, does not keep the others from being done.
                try:
                    async with asyncio.timeout(self._answer_seconds()):
                        await _say_over(run, part(now))
                except Exception:  # noqa: BLE001 - the heartbeat has told of it, and goes on trying
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
        expired = [hold for hold in expired if not self._is_given_back(hold)]
        for hold in expired:
            self._lost(hold, Reason.LEASE_EXPIRED, distrusted=True)
        return bool(expired)

    def _beat(self, now: float) -> Talk:
        with self._changed:
            sleeping, due = self._sleeping, now >= self._beat_at + BEAT_SECONDS
        if not due:
            return
        own = self._session.connected
        database = yield verbs.beat(
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

    def _tell(self, now: float, *, at_last: bool = False) -> Talk:
        """Tell what was counted. It must not cost the leases anything: what the database refuses is told more rarely."""
        rows = self._tally.changed() if at_last or now >= self._tell_at else []
        if not rows:
            return
        self._tell_at = now + self._tell_pause.next()
        yield verbs.tally(self._worker_id, rows)
        self._tally.settled()
        self._tell_pause.reset()

    def _look(self, now: float) -> Talk:
        """Ask about the leases that somebody says are lost."""
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
        with self._changed:
            # One whose job completed itself has nothing to be renewed.
            held = [hold for hold in self._holds.values() if now >= hold.renew_at and not hold.settled]
        due = [hold for hold in held if not self._is_given_back(hold)]
        for start in range(0, len(due), _BATCH_MAX):
            batch = {hold.lease: hold for hold in due[start : start + _BATCH_MAX]}
            asked_at = self._monotonic()
            settled = yield verbs.renew(list(batch))
            for refusal in settled.stale:
                hold = batch.pop(refusal.lease)
                hold.counts.refuse("renew", refusal.reason)
                self._lost(hold, refusal.reason)
            for lease in settled.busy:
                # Not renewed: asked again soon. Either somebody is deciding about this job right now, or its own transaction
                # holds the row: then nobody can take it meanwhile, and it is trusted.
                hold = batch.pop(lease)
                if hold.in_transaction:
                    hold.renewed_at = hold.busy_at = asked_at
            for hold in batch.values():
                hold.renewed(asked_at)
            self._tally.renewed += len(batch)
            for lease in batch if events.are_detailed() else ():
                events.emit_detail("lease_renewed", job_id=lease.job_id, token=lease.fencing_token)

    def _lost(self, hold: Hold, reason: str, *, distrusted: bool = False) -> None:
        self.drop([hold])
        if hold.lose(reason, distrusted=distrusted):
            events.emit("lease_lost", job_id=hold.lease.job_id, token=hold.lease.fencing_token, reason=reason)


async def _say_over(run: Run, talk: Talk) -> None:
    answer = None
    with contextlib.suppress(StopIteration):
        while True:
            answer = await run(talk.send(answer))
