"""What the companion does in the database while its worker cannot: renew started jobs, release the others.

The companion imports it when it is first needed. Every write names the whole lease. The worker's own session still holds its
advisory lock, so nobody takes the worker for dead.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.model import Failure, Lease
from faultline.store import verbs
from faultline.store.connection.heartbeat_session import session_name
from faultline.store.database import Database
from faultline.store.reads import views
from faultline.worker.companion.memory import BEGUN, ENDED, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.companion.memory import Entry, Shared

_BATCH_MAX = 1000
_RELEASE_SECONDS = 1.0
#: Within the time that others reap nothing after the database's clock was set forward: nobody here asks what it says.
_RENEW_SECONDS_MAX = 3.0
_TIMEOUT_SECONDS = 5.0
#: After how long a job that blocked its worker runs again, if it has attempts left: after those that it kept waiting.
_AGAIN_SECONDS = 10.0
_ADVICE = "Make the task a plain `def`, which runs in a thread, or call what blocks with asyncio.to_thread"
_SOME_DAY = datetime(1970, 1, 1, tzinfo=UTC)


class Rescue:
    """One connection, opened when there is something to do."""

    def __init__(self, dsn: str, worker: str, shared: Shared, monotonic: Callable[[], float]) -> None:
        self._dsn = dsn
        self._worker = worker
        self._shared = shared
        self._monotonic = monotonic
        self._database: Database | None = None
        #: When to renew each lease next, by serial number.
        self._renew_at: dict[int, float] = {}
        #: Serial numbers of what was released already.
        self._released: set[int] = set()
        self._looked_at = 0.0

    def close(self) -> None:
        """The worker is well again."""
        self._renew_at.clear()
        self._released.clear()
        if self._database is not None:
            self._database.close()
            self._database = None

    def use_dsn(self, dsn: str) -> None:
        self._dsn = dsn
        if self._database is not None:
            self._database.dsn = dsn

    def renew(self) -> None:
        """Renew started jobs, and ended jobs that are not written yet, each after a third of its lease, or some seconds."""
        now = self._monotonic()
        held = self._shared.entries(BEGUN, ENDED)
        due = {slot: entry for slot, entry in held.items() if now >= self._renew_at.get(entry.serial, 0.0)}
        for start in range(0, len(due), _BATCH_MAX):
            slots = list(due)[start : start + _BATCH_MAX]
            leases = {self._lease(due[slot]): slot for slot in slots}
            # Skip what has been written meanwhile: its renewal would be recorded as a refusal.
            good = self._opened().run(views.still_held(list(leases)))
            asked_at = self._monotonic()
            unwritten = self._opened().run(verbs.renew(list(good))) if good else None
            refused = {refusal.lease for refusal in unwritten.stale} if unwritten else set()
            for lease, slot in leases.items():
                entry = due[slot]
                if lease in good and lease not in refused and unwritten and lease not in unwritten.busy:
                    self._shared.renewed(slot, entry.serial, asked_at)
                    self._renew_at[entry.serial] = asked_at + min(_RENEW_SECONDS_MAX, entry.lease_seconds / 3)
                else:
                    # Locked by its own transaction, or gone: ask again later.
                    self._renew_at[entry.serial] = asked_at + min(1.0, entry.lease_seconds / 3)

    def release(self) -> None:
        """Release jobs that were not started: those that wait in the worker, and those of claims without an answer yet.

        The companion raises the flag, asks, and then reads the list again. The worker marks a job as started and then looks
        at the flag. So either the companion sees the mark and leaves the job alone, or the worker sees the flag and does not
        start it.
        """
        shared, now = self._shared, self._monotonic()
        if now < self._looked_at + _RELEASE_SECONDS:
            return
        self._looked_at = now
        waiting = {p: e for p, e in shared.entries(WAITING).items() if e.serial not in self._released}
        claims = shared.claims()
        if not waiting and not claims:
            return
        database = self._opened()
        claimed = [lease for claim in sorted(claims) for lease in database.run(verbs.claimed_by(self._owner(claim)))]
        if not waiting and not claimed:
            return
        shared.raise_flag()
        try:
            leases = {self._lease(entry): (slot, entry) for slot, entry in waiting.items()}
            good = database.run(views.still_held([*leases, *claimed]))
            unchanged, claims = shared.entries(WAITING), shared.claims()
            unstarted = [lease for lease, (slot, entry) in leases.items() if lease in good and unchanged.get(slot) == entry]
            unstarted += [lease for lease in claimed if lease in good and int(lease.owner.rpartition("/")[2]) in claims]
            for start in range(0, len(unstarted), _BATCH_MAX):
                database.run(verbs.release(unstarted[start : start + _BATCH_MAX]))
            self._released.update(entry.serial for entry in waiting.values())
        finally:
            shared.flag_done()

    def release_or_fail(self, blocker: int, seconds: float) -> None:
        """The worker was killed because the job with this serial number blocked its loop: its attempt has failed. Release
        the others. One that has begun its last attempt is left to be reaped: it must not run again.
        """
        leases = {self._lease(entry): entry for entry in self._shared.entries(WAITING, BEGUN, ENDED).values()}
        held = self._opened().run(views.still_held(list(leases)))
        guilty = [lease for lease in held if leases[lease].serial == blocker]
        free = [
            lease
            for lease in held
            if leases[lease].serial != blocker and (leases[lease].state == WAITING or not leases[lease].is_last)
        ]
        why = f"it blocked the event loop of its worker for {seconds:.0f} s, and the process was killed. {_ADVICE}"
        if guilty:
            self._opened().run(verbs.fail(guilty, [Failure(why, delay_seconds=_AGAIN_SECONDS)] * len(guilty)))
        for start in range(0, len(free), _BATCH_MAX):
            self._opened().run(verbs.release(free[start : start + _BATCH_MAX]))

    def _opened(self) -> Database:
        if self._database is None:
            self._database = Database(
                self._dsn, connections_max=1, timeout=_TIMEOUT_SECONDS, name=session_name(self._worker)
            )
            self._database.writes = True
        return self._database

    def _owner(self, claim: int) -> str:
        return f"{self._worker}/{claim}"

    def _lease(self, entry: Entry) -> Lease:
        """Only the fields that the database compares are real."""
        return Lease(
            job_id=UUID(bytes=entry.job_id),
            fencing_token=entry.token,
            owner=self._owner(entry.claim),
            task="",
            args={},
            attempt=0,
            max_attempts=0,
            needs_start_record=False,
            reaps=0,
            priority=0,
            next_run_at=_SOME_DAY,
            lease_seconds=entry.lease_seconds,
            key=None,
            in_flow=False,
            group=None,
        )
