"""Schedules in a soak: their moments come every second or two, whoever is dead, and each is decided once.

One makes up for all that nobody decided in time, the others for the latest. When the faults are over they are paused: first
each of them has to be where the clock is.
"""

from __future__ import annotations

import asyncio
from datetime import datetime  # noqa: TC003 - looked at when the task is registered
from typing import TYPE_CHECKING, Any

from faultline.store.verbs import schedules
from faultline_proof.reads import audit

if TYPE_CHECKING:
    from faultline.app.application import Faultline
    from faultline.store.database import Database

#: The seconds between their moments, and what they do about those that nobody decided in time.
EVERY = {"every second": 1.0, "the latest": 1.5, "not two at once": 2.0, "one runs, one waits": 1.7}
CATCH_UP = {"every second": "all", "the latest": "latest", "not two at once": "latest", "one runs, one waits": "latest"}
OVERLAP = {"not two at once": "skip", "one runs, one waits": "one"}
#: Nobody but schedules makes jobs of these.
TASK, SLOW = "chime", "toll"
_SLOW_SECONDS_MAX = 2.5


def register(app: Faultline, options: dict[str, Any]) -> None:
    @app.schedule(every=EVERY["every second"], name="every second", catch_up="all", tick_arg="at")
    @app.schedule(every=EVERY["the latest"], name="the latest", catch_up="latest", tick_arg="at")
    @app.schedule(every=EVERY["not two at once"], name="not two at once", overlap="skip", tick_arg="at")
    @app.task(name=TASK, **options)
    async def chime(at: datetime) -> str:
        return at.isoformat()

    @app.schedule(every=EVERY["one runs, one waits"], name="one runs, one waits", overlap="one", tick_arg="at")
    @app.task(name=SLOW, **options)
    async def toll(at: datetime) -> str:
        """As long as its moment says: now and then longer than until the next one."""
        await asyncio.sleep(at.timestamp() * 7 % _SLOW_SECONDS_MAX)
        return at.isoformat()


def pause(database: Database) -> bool:
    """Pause those that have no moment left to decide. Whether all are paused."""
    left = database.run(audit.schedules_left())
    for name, is_behind in left.items():
        if not is_behind:
            database.run(schedules.pause_schedule(name, by="soak", reason="the faults are over"))
    return not left
