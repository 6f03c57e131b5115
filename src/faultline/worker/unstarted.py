"""Give back leases that are not begun here: claimed too late, not to be run beside what runs, or left when the worker stops.

After the event loop was blocked it is not known of some whether the companion gave them back. None of these is begun any
more. Once the companion is done, the database says which are still held; those are released, the others belong to somebody
else already, and nothing is written for them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from faultline.core import events
from faultline.core.backoff import Pause
from faultline.store.reads import views
from faultline.worker.endings import Released

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.completer import Completer
    from faultline.worker.hold import Hold
    from faultline.worker.leases import Leases

_DONE_SECONDS = 5.0
_TRIES_MAX = 10
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0


class Waits(Protocol):
    """A feed, as far as it holds what was not begun."""

    def take_waiting(self) -> list[Hold]: ...


class Unstarted:
    """`feeds`: by the names of their queues."""

    def __init__(
        self,
        leases: Leases,
        database: AsyncDatabase,
        completer: Completer,
        feeds: Mapping[str, Waits],
        monotonic: Callable[[], float],
    ) -> None:
        self._leases = leases
        self._database = database
        self._completer = completer
        self._feeds = feeds
        self._monotonic = monotonic
        self._waiting: list[Hold] = []
        self._resolving: asyncio.Task[None] | None = None

    def give_back_all(self) -> None:
        """What waits in any feed."""
        self.give_back([hold for feed in self._feeds.values() for hold in feed.take_waiting()])

    def give_back(self, holds: Sequence[Hold], delay_seconds: float | None = None) -> None:
        """Marked first, then looked whether the companion was quicker: once is enough."""
        doubtful = []
        for hold in holds:
            self._leases.ended(hold)
            if self._leases.in_doubt(hold):
                doubtful.append(hold)
            else:
                self._completer.put(Released(hold, delay_seconds))
        if doubtful:
            self.settle(doubtful)

    def settle(self, holds: Sequence[Hold]) -> None:
        """Find out which of these the companion gave back, and release the others."""
        self._leases.drop(holds)
        self._waiting.extend(holds)
        if self._waiting and self._resolving is None:
            self._resolving = asyncio.create_task(self._resolve())

    async def resolved(self) -> None:
        while self._resolving is not None:
            await asyncio.wait([self._resolving])

    async def _resolve(self) -> None:
        try:
            while self._waiting:
                give_up = self._monotonic() + _DONE_SECONDS
                while self._leases.are_given_back and self._monotonic() < give_up:  # noqa: ASYNC110 - another process says so
                    await asyncio.sleep(_PAUSE_MIN)
                holds, self._waiting = self._waiting, []
                await self._release(holds)
        finally:
            self._resolving = None

    async def _release(self, holds: list[Hold]) -> None:
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        for _ in range(_TRIES_MAX):
            try:
                held = await self._database.run(views.still_held([hold.lease for hold in holds]))
            except Exception as error:  # noqa: BLE001 - asked again; if it never answers, the leases run out
                events.emit("unstarted_unanswered", jobs=len(holds), error=str(error))
                await asyncio.sleep(pause.next())
            else:
                for hold in holds:
                    if hold.lease in held:
                        self._completer.put(Released(hold))
                return
