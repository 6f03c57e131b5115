"""The leases that this worker holds, from the claim to the last answer.

The heartbeat renews what is listed here. If there is a companion process, the leases are also listed in the shared memory:
whatever happens to the worker, the companion knows what it holds.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from faultline.worker.companion.client import Standby
    from faultline.worker.companion.memory import Shared
    from faultline.worker.lease.heartbeat import Heartbeat
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.permits import Permits


class Leases:
    def __init__(self, worker_id: str, queues: Iterable[str], heartbeat: Heartbeat) -> None:
        self.worker_id = worker_id
        self._heartbeat = heartbeat
        self._numbers = {name: number for number, name in enumerate(queues)}
        self._claims = itertools.count(1)
        self._standby: Standby | None = None
        #: What is held in queues with limits.
        self.permits: Permits | None = None
        #: The memory that a companion process reads; None: there is none.
        self.shared: Shared | None = None

    def list_for(self, standby: Standby | None) -> None:
        """From now on, list them also for this companion (None: for none)."""
        self._standby = standby
        self.shared = self._heartbeat.shared = None if standby is None else standby.shared

    def owner_of_claim(self, queue: str) -> str:
        """The owner of the next claim: new for every claim."""
        claim = next(self._claims)
        if self._standby is not None:
            self._standby.claim_sent(self._numbers[queue], claim)
        return f"{self.worker_id}/{claim}"

    def took(self, queue: str, holds: Sequence[HeldLease]) -> None:
        """List what a claim got, before any of it starts."""
        if self._standby is not None:
            self._standby.took(self._numbers[queue], holds)
        self._heartbeat.keep(holds)
        if self.permits is not None:
            self.permits.took(queue, holds)
        for hold in holds if events.are_detailed() else ():
            events.emit_detail("lease_acquired", job_id=hold.lease.job_id, token=hold.lease.fencing_token)

    def in_doubt(self, hold: HeldLease) -> bool:
        """The companion may have released this job: do not start it."""
        return self._standby is not None and hold.lost is None and self._standby.in_doubt(hold)

    @property
    def are_being_released(self) -> bool:
        return self._standby is not None and self._standby.is_releasing

    def ended(self, hold: HeldLease) -> None:
        """Its ending is about to be written."""
        if self.shared is not None:
            self.shared.ended(hold)

    def drop(self, holds: Sequence[HeldLease]) -> None:
        self._heartbeat.drop(holds)
        if self.permits is not None:
            self.permits.dropped(holds)
