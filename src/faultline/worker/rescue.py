"""What the companion does in the database while its worker cannot: renew what was begun, give back what was not.

Loaded by the companion when it is needed for the first time. Every write names the whole lease, and the worker's own session
holds its advisory lock meanwhile, so nobody takes it for dead.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.model import Lease
from faultline.store import verbs
from faultline.store.database import Database
from faultline.store.reads import views
from faultline.store.session import session_name
from faultline.worker.shared import BEGUN, ENDED, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.shared import Entry, Shared

_BATCH_MAX = 1000
_GIVE_BACK_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_SOME_DAY = datetime(1970, 1, 1, tzinfo=UTC)


class Rescue:
    """One connection, opened when there is something to do."""

    def __init__(self, dsn: str, worker: str, shared: Shared, monotonic: Callable[[], float]) -> None:
        self._dsn = dsn
        self._worker = worker
        self._shared = shared
        self._monotonic = monotonic
        self._database: Database | None = None
        #: When each lease is to be renewed next, by its serial number.
        self._renew_at: dict[int, float] = {}
        #: What was given back already.
        self._given_back: set[int] = set()
        self._looked_at = 0.0

    def close(self) -> None:
        """The worker is well again."""
        self._renew_at.clear()
        self._given_back.clear()
        if self._database is not None:
            self._database.close()
            self._database = None

    def renew(self) -> None:
        """Renew what was begun, and what has ended and is not written yet, each at a third of its length."""
        now = self._monotonic()
        held = self._shared.entries(BEGUN, ENDED)
        due = {place: entry for place, entry in held.items() if now >= self._renew_at.get(entry.serial, 0.0)}
        for start in range(0, len(due), _BATCH_MAX):
            places = list(due)[start : start + _BATCH_MAX]
            leases = {self._lease(due[place]): place for place in places}
            # What has been written meanwhile is asked about and not renewed: a refusal would go on record for nothing.
            good = self._opened().run(views.still_held(list(leases)))
            asked_at = self._monotonic()
            settled = self._opened().run(verbs.renew(list(good))) if good else None
            refused = {refusal.lease for refusal in settled.stale} if settled else set()
            for lease, place in leases.items():
                entry = due[place]
                if lease in good and lease not in refused and settled and lease not in settled.busy:
                    self._shared.renewed(place, entry.serial, asked_at)
                    self._renew_at[entry.serial] = asked_at + entry.lease_seconds / 3
                else:
                    # Locked by its own transaction, or gone: asked again after a while.
                    self._renew_at[entry.serial] = asked_at + min(1.0, entry.lease_seconds / 3)

    def give_back(self) -> None:
        """Release what was not begun: what waits in the worker, and what claims on their way have been granted.

        The flag is raised before the question and the list is read again after the answer. The worker begins a lease by
        marking it as begun and looking at the flag after that. So either we see the mark and leave the lease alone, or the
        worker sees the flag and does not begin it.
        """
        shared, now = self._shared, self._monotonic()
        if now < self._looked_at + _GIVE_BACK_SECONDS:
            return
        self._looked_at = now
        waiting = {p: e for p, e in shared.entries(WAITING).items() if e.serial not in self._given_back}
        claims = shared.claims()
        if not waiting and not claims:
            return
        database = self._opened()
        granted = [lease for claim in sorted(claims) for lease in database.run(verbs.granted_to(self._owner(claim)))]
        if not waiting and not granted:
            return
        shared.raise_flag()
        try:
            leases = {self._lease(entry): (place, entry) for place, entry in waiting.items()}
            good = database.run(views.still_held([*leases, *granted]))
            unchanged, claims = shared.entries(WAITING), shared.claims()
            unstarted = [
                lease for lease, (place, entry) in leases.items() if lease in good and unchanged.get(place) == entry
            ]
            unstarted += [lease for lease in granted if lease in good and int(lease.owner.rpartition("/")[2]) in claims]
            for start in range(0, len(unstarted), _BATCH_MAX):
                database.run(verbs.release(unstarted[start : start + _BATCH_MAX]))
            self._given_back.update(entry.serial for entry in waiting.values())
        finally:
            shared.flag_done()

    def _opened(self) -> Database:
        if self._database is None:
            self._database = Database(
                self._dsn, connections_max=1, timeout=_TIMEOUT_SECONDS, name=session_name(self._worker)
            )
        return self._database

    def _owner(self, claim: int) -> str:
        return f"{self._worker}/{claim}"

    def _lease(self, entry: Entry) -> Lease:
        """As much of it as the database compares."""
        return Lease(
            job_id=UUID(bytes=entry.job_id),
            fencing_token=entry.token,
            owner=self._owner(entry.claim),
            task="",
            args={},
            attempt=0,
            max_attempts=0,
            mark_start=False,
            reaps=0,
            priority=0,
            next_run_at=_SOME_DAY,
            lease_seconds=entry.lease_seconds,
            key=None,
        )
