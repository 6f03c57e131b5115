"""Release jobs that do not start here: claimed too late, not allowed beside the running ones, or left when the worker stops.

After the event loop was blocked, the companion may have released some of them. None of these starts here. When the companion
is done, the worker asks the database which it still holds, and releases only those.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from faultline.core import events
from faultline.core.pause import Pause
from faultline.store.reads import views
from faultline.worker.write.endings import Released

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.lease_table import Leases
    from faultline.worker.write.completer import Completer

_DONE_SECONDS = 5.0
_TRIES_MAX = 10
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0


class Waits(Protocol):
    def take_waiting(self) -> list[HeldLease]: ...


class Unstarted:
    """`feeds`: by queue."""

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
        self._waiting: list[HeldLease] = []
        self._resolving: asyncio.Task[None] | None = None

    def release_all(self) -> None:
        self.release([hold for feed in self._feeds.values() for hold in feed.take_waiting()])

    def release(self, holds: Sequence[HeldLease], delay_seconds: float | None = None) -> None:
        """Mark first, then check whether the companion was faster: a job must not be released twice."""
        doubtful = []
        for hold in holds:
            self._leases.ended(hold)
            if self._leases.in_doubt(hold):
                doubtful.append(hold)
            else:
                self._completer.put(Released(hold, delay_seconds))
        if doubtful:
            self.release_if_held(doubtful)

    def release_if_held(self, holds: Sequence[HeldLease]) -> None:
        """Find out which of these the companion released, and release the others."""
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
                while self._leases.are_being_released and self._monotonic() < give_up:  # noqa: ASYNC110 - another process says so
                    await asyncio.sleep(_PAUSE_MIN)
                holds, self._waiting = self._waiting, []
                await self._release_held(holds)
        finally:
            self._resolving = None

    async def _release_held(self, holds: list[HeldLease]) -> None:
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        for _ in range(_TRIES_MAX):
            try:
                held = await self._database.run(views.still_held([hold.lease for hold in holds]))
            except Exception as error:  # noqa: BLE001 - ask again; if it never answers, the leases expire
                events.emit("unstarted_unanswered", jobs=len(holds), error=str(error))
                await asyncio.sleep(pause.next())
            else:
                for hold in holds:
                    if hold.lease in held:
                        self._completer.put(Released(hold))
                return
