"""What this worker holds in queues with limits.

A lease there holds a permit until its ending is written, and others wait for it. So a feed of such a queue claims no more
than it has free slots, counts a job until it has given its permit back, and claims again as soon as one is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from faultline.worker.lease.held_lease import HeldLease


class Limited(Protocol):
    """A feed, which may be one of a queue with limits."""

    within: set[HeldLease] | None

    def freed(self) -> None: ...


class Permits:
    """`feeds`: of one worker, by queue."""

    def __init__(self, feeds: Mapping[str, Limited]) -> None:
        self._feeds = feeds
        self._held: dict[str, set[HeldLease]] = {}
        #: Its feeds have been stopped.
        self._has_ended = False

    @property
    def claims_freed(self) -> bool:
        """Whether a permit that this worker gives back is claimed by it at once: then nobody else need be woken for it."""
        return bool(self._held) and not self._has_ended

    def end(self) -> None:
        """The worker stops: from now on, what it gives back is for others."""
        self._has_ended = True

    def limit(self, queues: Collection[str]) -> None:
        """These of its queues have limits, and no others."""
        for name in self._held.keys() - set(queues):
            del self._held[name]
            self._feeds[name].within = None
        for name in queues:
            if name in self._feeds and name not in self._held:
                self._feeds[name].within = self._held[name] = set()

    def took(self, queue: str, holds: Sequence[HeldLease]) -> None:
        held = self._held.get(queue)
        if held is not None:
            held.update(holds)

    def dropped(self, holds: Sequence[HeldLease]) -> None:
        """Their endings are written, or they are lost."""
        if not self._held:
            return
        queues = dict.fromkeys(hold.counts.queue for hold in holds)
        for name in queues:
            held = self._held.get(name)
            if held is not None:
                held.difference_update(holds)
                self._feeds[name].freed()

    def freed(self, queue: str) -> None:
        """A permit of this queue was freed, of another worker perhaps."""
        if queue in self._held:
            self._feeds[queue].freed()
