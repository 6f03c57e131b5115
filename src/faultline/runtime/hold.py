"""A lease in this worker's hands: how long it may be trusted, and whether it is lost. Shared between threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease


class Hold:
    """Trust in a lease is counted from *before* the round trip that granted it: a slow answer must not lengthen it."""

    __slots__ = ("_lock", "_on_lost", "in_transaction", "lease", "lost", "renewed_at", "settled")

    def __init__(self, lease: Lease, granted_at: float) -> None:
        self.lease = lease
        self.renewed_at = granted_at
        #: Why it was lost; None while it is not.
        self.lost: str | None = None
        #: The job's own transaction holds the row's lock: nobody can take the job meanwhile.
        self.in_transaction = False
        #: The job was completed inside its own transaction, or its ending is on its way: nothing more is to be written.
        self.settled = False
        self._lock = threading.Lock()
        self._on_lost: Callable[[], None] | None = None

    @property
    def trusted_until(self) -> float:
        return self.renewed_at + self.lease.lease_seconds

    @property
    def renew_at(self) -> float:
        return self.renewed_at + self.lease.lease_seconds / 3

    def lose(self, reason: str) -> bool:
        """Say that it is gone. True the first time; whoever runs the job is told then."""
        with self._lock:
            if self.lost is not None or self.settled:
                return False
            self.lost = reason
            tell = self._on_lost
        if tell is not None:
            tell()
        return True

    def when_lost(self, tell: Callable[[], None] | None) -> None:
        """Call this once it is lost; at once, if it is lost already."""
        with self._lock:
            self._on_lost = tell
            lost = self.lost is not None
        if lost and tell is not None:
            tell()
