"""The leases in this worker's hands, from the claim to the last answer.

What is listed here is renewed by the heartbeat. Where there is a companion process, it is also listed in the memory that
both share: whatever happens to this process, somebody knows what it holds.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from faultline.worker.heartbeat import Heartbeat
    from faultline.worker.hold import Hold
    from faultline.worker.shared import Shared
    from faultline.worker.standby import Standby


class Leases:
    """Feeds, executor and completer share it."""

    def __init__(self, worker_id: str, queues: Iterable[str], heartbeat: Heartbeat) -> None:
        self._worker_id = worker_id
        self._heartbeat = heartbeat
        self._numbers = {name: number for number, name in enumerate(queues)}
        self._claims = itertools.count(1)
        self._standby: Standby | None = None
        #: The memory that a companion process looks at; None where there is none.
        self.shared: Shared | None = None

    def list_for(self, standby: Standby | None) -> None:
        """From now on, list them also for this companion; for none any more."""
        self._standby = standby
        self.shared = self._heartbeat.shared = None if standby is None else standby.shared

    def owner_of_claim(self, queue: str) -> str:
        """Who a claim is for that is about to be sent: new for every claim."""
        claim = next(self._claims)
        if self._standby is not None:
            self._standby.claim_sent(self._numbers[queue], claim)
        return f"{self._worker_id}/{claim}"

    def took(self, queue: str, holds: Sequence[Hold]) -> None:
        """List what a claim was granted before anything of it is begun."""
        if self._standby is not None:
            self._standby.took(self._numbers[queue], holds)
        self._heartbeat.keep(holds)
        for hold in holds if events.are_detailed() else ():
            events.emit_detail("lease_acquired", job_id=hold.lease.job_id, token=hold.lease.fencing_token)

    def in_doubt(self, hold: Hold) -> bool:
        """The companion may have given this lease back: it must not be begun."""
        return self._standby is not None and hold.lost is None and self._standby.in_doubt(hold)

    @property
    def are_given_back(self) -> bool:
        """The companion is at it now."""
        return self._standby is not None and self._standby.gives_back

    def ended(self, hold: Hold) -> None:
        """How it ended is about to be written."""
        if self.shared is not None:
            self.shared.ended(hold)

    def drop(self, holds: Sequence[Hold]) -> None:
        """These are out of our hands."""
        self._heartbeat.drop(holds)
