"""Store which tasks a worker knows and how many connections it may open, for `faultline doctor`; and to which topics these
tasks are subscribed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.store import verbs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.store.async_database import AsyncDatabase
    from faultline.store.statement import Statement
    from faultline.worker.tally import Tally

_ANNOUNCE_SECONDS, _LISTED_SECONDS = 60.0, 0.5
_SUBSCRIBE_SECONDS = 5.0


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


class Subscribing:
    """Writes them once: a build that starts later has the last word about its tasks."""

    def __init__(self, database: AsyncDatabase, worker_id: str, wanted: Sequence[Statement[bool]], tally: Tally) -> None:
        self._database = database
        self._worker_id = worker_id
        self._wanted = wanted
        self._tally = tally
        self._is_done = not wanted

    async def begin(self) -> None:
        """Before the worker says that it has started: what is published then finds its tasks."""
        if self._is_done:
            return
        try:
            await self._database.run_all(list(self._wanted))
            self._is_done = True
        except Exception as error:  # noqa: BLE001 - the worker has other work to do
            self._tally.database_failed()
            events.emit("subscribe_failed", worker=self._worker_id, error=str(error))

    async def run(self) -> None:
        while not self._is_done:
            await asyncio.sleep(_SUBSCRIBE_SECONDS)
            await self.begin()
