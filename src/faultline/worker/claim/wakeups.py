"""Store on which queues this worker wants to be woken, and pass the hints to its feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from faultline.worker.claim.notifier import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.claim.notifier import Hint
    from faultline.worker.lease.heartbeat import Heartbeat


class Hinted(Protocol):
    def hint(self, hint: Hint) -> None: ...


class Hints:
    """`feeds`: of one worker, by queue."""

    def __init__(
        self,
        database: AsyncDatabase,
        worker_id: str,
        heartbeat: Heartbeat,
        feeds: Mapping[str, Hinted],
        on_nudge: Callable[[], None],
    ) -> None:
        self._heartbeat = heartbeat
        self._feeds = feeds
        self._resting: frozenset[str] = frozenset()
        self.notifier = Notifier(
            database, worker_id=worker_id, on_work=self._pass_on, on_cancel=heartbeat.doubt, on_nudge=on_nudge
        )

    def rests(self, queue: str) -> bool:
        """A feed found nothing. Returns whether a hint may be missed: the notifier does not listen, or this is new."""
        return self._rest(self._resting | {queue})

    def works(self, queue: str) -> None:
        """A feed found as much as it wanted."""
        self._rest(self._resting - {queue})

    def _rest(self, resting: frozenset[str]) -> bool:
        changed = resting != self._resting
        if changed:
            self._resting = resting
            self._heartbeat.sleep_on(resting)
        return changed or not self.notifier.listening

    def _pass_on(self, hint: Hint) -> None:
        for name in self._feeds if hint.queue is None else [hint.queue]:
            if name in self._feeds:
                self._feeds[name].hint(hint)
