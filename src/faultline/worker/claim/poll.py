"""Poll all idle queues of a worker with one statement. A claim for each of a thousand idle queues would keep a core busy."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from faultline.core import events
from faultline.store.reads import views
from faultline.worker.claim.notifier import Hint

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from faultline.core.model import Bound
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally

#: A worker of more queues than this polls all idle ones together.
QUEUES_APART = 3
POLL_SECONDS = 0.5
#: The maximum: a look may have been slow because the server was away, which must not hide work for minutes.
_RESET_SECONDS_MIN, _RESET_SECONDS_MAX, _RESET_SHARE = 1.0, 10.0, 100.0


def reset_seconds(took: float) -> float:
    """How long to use bounds after a look without them that took so long.

    Bounds are a hint and must never hide work for long. A look without them may be expensive, so it is rare.
    """
    return min(max(_RESET_SECONDS_MIN, _RESET_SHARE * took), _RESET_SECONDS_MAX)


class Rests(Protocol):
    """A feed that has found nothing for a while."""

    name: str

    def bounds(self) -> list[Bound]: ...

    def hint(self, hint: Hint) -> None: ...

    def wake(self) -> None: ...


class Poll:
    """Wakes a resting feed when its queue has a due job."""

    def __init__(self, database: AsyncDatabase, chance: random.Random, tally: Tally) -> None:
        self._database = database
        self._chance = chance
        self._tally = tally
        self._resting: dict[str, Rests] = {}
        self._reset_at = 0.0

    @contextlib.contextmanager
    def watching(self, feed: Rests) -> Iterator[None]:
        self._resting[feed.name] = feed
        try:
            yield
        finally:
            self._resting.pop(feed.name, None)

    async def run(self) -> None:
        """Ends only when cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS * self._chance.uniform(0.75, 1.0))
            if self._resting:
                await self.tick()

    async def tick(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        anywhere = asked_at >= self._reset_at
        bounds = {} if anywhere else {name: feed.bounds() for name, feed in self._resting.items()}
        try:
            due = await self._database.run(views.due(sorted(self._resting), bounds))
        except Exception as error:  # noqa: BLE001 - any error: ask again
            self._tally.database_failed()
            events.emit("poll_failed", error=str(error))
            return
        if anywhere:
            self._reset_at = loop.time() + reset_seconds(loop.time() - asked_at)
        for name in due:
            if name not in self._resting:
                continue
            if anywhere:
                self._resting[name].hint(Hint(name))
            else:
                self._resting[name].wake()
