"""One look for all queues on which a worker rests. A claim for each of a thousand idle queues would keep a core busy."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.store.reads import views
from faultline.worker.lane import reset_seconds

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.lane import Lane
    from faultline.worker.tally import Tally

#: A worker of more queues than this polls for all that rest together.
QUEUES_APART = 3
POLL_SECONDS = 0.5


class Poll:
    """A lane that has found nothing for a while rests here and is hinted at when its queue has something due."""

    def __init__(self, database: AsyncDatabase, chance: random.Random, tally: Tally) -> None:
        self._database = database
        self._chance = chance
        self._tally = tally
        self._resting: dict[str, Lane] = {}
        self._reset_at = 0.0

    @contextlib.contextmanager
    def watching(self, lane: Lane) -> Iterator[None]:
        self._resting[lane.name] = lane
        try:
            yield
        finally:
            self._resting.pop(lane.name, None)

    async def run(self) -> None:
        """Ends only by being cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS * self._chance.uniform(0.75, 1.0))
            if self._resting:
                await self.tick()

    async def tick(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        anywhere = asked_at >= self._reset_at
        bounds = {} if anywhere else {name: lane.bounds() for name, lane in self._resting.items()}
        try:
            due = await self._database.run(views.due(sorted(self._resting), bounds))
        except Exception as error:  # noqa: BLE001 - whatever the server said, it is asked again
            self._tally.database_failed()
            events.emit("poll_failed", error=str(error))
            return
        if anywhere:
            self._reset_at = loop.time() + reset_seconds(loop.time() - asked_at)
        for name in due:
            if name not in self._resting:
                continue
            if anywhere:
                self._resting[name].hint(None)
            else:
                self._resting[name].wake()
