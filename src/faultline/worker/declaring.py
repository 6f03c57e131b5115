"""Declare the limits of queues when a worker starts, as its code has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.backoff import Pause
from faultline.store.verbs import limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.app.registry import Registry
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.feed import Feed
    from faultline.worker.permits import Permits
    from faultline.worker.tally import Tally

_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0


class Declaring:
    """Once: a build that starts later has the last word, and what people have set stays.

    Until a queue is declared, nothing is claimed from it: it might have no limits in the database yet, and one that is
    promised never to be exceeded must not be, not even for the time that the database takes to come back.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        worker_id: str,
        app: Registry,
        feeds: Mapping[str, Feed],
        permits: Permits,
        tally: Tally,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._wanted = app.declarations()
        self._feeds = feeds
        self._permits = permits
        self._tally = tally
        self._is_done = asyncio.Event()
        if self._wanted:
            # Any job may take from a budget, and one that is not there yet would fail it.
            names = set(feeds) if app.declared_budgets() else app.declared_queues() & feeds.keys()
            for name in names:
                feeds[name].declared = self._is_done
        else:
            self._is_done.set()

    async def begin(self) -> None:
        """Before the worker says that it has started."""
        if not self._is_done.is_set():
            await self._declare()

    async def run(self) -> None:
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        while not self._is_done.is_set():
            await asyncio.sleep(pause.next())
            await self._declare()

    async def _declare(self) -> None:
        try:
            await self._database.run_all(list(self._wanted))
            found = await self._database.run(limit.limited(list(self._feeds)))
            self._permits.limit(found)
        except Exception as error:  # noqa: BLE001 - the worker has other queues, and tries again
            self._tally.database_failed()
            events.emit("queue_not_declared", worker=self._worker_id, error=str(error))
        else:
            self._is_done.set()
