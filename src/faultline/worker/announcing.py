"""Store which tasks a worker knows and how many connections it may open, for `faultline doctor`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.store import verbs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.tally import Tally

_ANNOUNCE_SECONDS, _LISTED_SECONDS = 60.0, 0.5


class Announcing:
    """Repeats it: the row of a worker that was removed by mistake comes back empty with its next heartbeat."""

    def __init__(
        self, database: AsyncDatabase, worker_id: str, tasks: Mapping[str, Any], connections_max: int, tally: Tally
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._tasks = tasks
        self._connections_max = connections_max
        self._tally = tally

    async def run(self) -> None:
        while True:
            pause = _ANNOUNCE_SECONDS
            try:
                said = verbs.announce(self._worker_id, sorted(self._tasks), self._connections_max)
                if not await self._database.run(said):
                    pause = _LISTED_SECONDS
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                self._tally.database_failed()
                events.emit("announce_failed", worker=self._worker_id, error=str(error))
            await asyncio.sleep(pause)
