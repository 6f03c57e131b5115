"""Leases of which the worker does not know whether its companion gave them back, after its event loop was blocked.

None of them is begun any more. Once the companion is done, the database says which are still held; those are released, the
others belong to somebody else already, and nothing is written for them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.store.reads import views
from faultline.worker.completer import Released

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.completer import Completer
    from faultline.worker.hold import Hold
    from faultline.worker.standby import Standby

_DONE_SECONDS = 5.0
_TRIES_MAX = 10
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0


class Unstarted:
    """`drop` takes leases out of the worker's hands: they are not renewed any more."""

    def __init__(
        self,
        standby: Standby,
        database: AsyncDatabase,
        completer: Completer,
        drop: Callable[[Sequence[Hold]], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._standby = standby
        self._database = database
        self._completer = completer
        self._drop = drop
        self._monotonic = monotonic
        self._waiting: list[Hold] = []
        self._resolving: asyncio.Task[None] | None = None

    def add(self, holds: Sequence[Hold]) -> None:
        self._drop(holds)
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
                while self._standby.gives_back and self._monotonic() < give_up:  # noqa: ASYNC110 - another process says so
                    await asyncio.sleep(_PAUSE_MIN)
                holds, self._waiting = self._waiting, []
                await self._release(holds)
        finally:
            self._resolving = None

    async def _release(self, holds: list[Hold]) -> None:
        pause = _PAUSE_MIN
        for _ in range(_TRIES_MAX):
            try:
                held = await self._database.run(views.still_held([hold.lease for hold in holds]))
            except Exception as error:  # noqa: BLE001 - asked again; if it never answers, the leases run out
                events.emit("unstarted_unanswered", jobs=len(holds), error=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)
            else:
                for hold in holds:
                    if hold.lease in held:
                        self._completer.put(Released(hold))
                return
