"""Wait for the database when a worker starts: it may be starting, failing over or refusing for a moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.backoff import Pause
from faultline.store.translation import is_about_the_moment
from faultline.worker import databases

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.app.registry import Registry
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.facts import Facts

_REACH_SECONDS = 30.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0


async def reached(database: AsyncDatabase, worker: str | None, is_stopped: Callable[[], bool] = lambda: False) -> Facts:
    """Its facts. Raises if waiting does not help, or after half a minute."""
    monotonic = database.host.monotonic
    give_up, pause = monotonic() + _REACH_SECONDS, Pause(_PAUSE_MIN, _PAUSE_MAX)
    while True:
        try:
            return await database.facts()
        except Exception as error:
            if not is_about_the_moment(error) or is_stopped() or monotonic() >= give_up:
                raise
            events.emit("database_unavailable", worker=worker, error=str(error))
        await asyncio.sleep(pause.next())


async def reach(app: Registry) -> None:
    """For a parent of several workers: it reports an error once, instead of every child."""
    database = databases.of_engine(app, 1, "parent")
    try:
        await reached(database, None)
    finally:
        await database.close()
