"""Schedules in a soak: their moments come every second or two, whoever is dead, and each is decided once.

One makes up for all that nobody decided in time, the others for the latest. When the faults are over they are paused: first
each of them has to be where the clock is.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - looked at when the task is registered
from typing import TYPE_CHECKING, Any

from faultline.store.reads import audit
from faultline.store.verbs import schedules

if TYPE_CHECKING:
    from faultline.app.application import Faultline
    from faultline.store.database import Database

#: The seconds between their moments, and what they do about those that nobody decided in time.
EVERY = {"every second": 1.0, "the latest": 1.5, "not two at once": 2.0}
CATCH_UP = {"every second": "all", "the latest": "latest", "not two at once": "latest"}
#: Nobody but schedules makes jobs of it.
TASK = "chime"


def register(app: Faultline, options: dict[str, Any]) -> None:
    @app.schedule(every=EVERY["every second"], name="every second", catch_up="all", tick_arg="at")
    @app.schedule(every=EVERY["the latest"], name="the latest", catch_up="latest", tick_arg="at")
    @app.schedule(every=EVERY["not two at once"], name="not two at once", overlap="skip", tick_arg="at")
    @app.task(name=TASK, **options)
    async def chime(at: datetime) -> str:
        return at.isoformat()


def pause(database: Database) -> bool:
    """Pause those that have no moment left to decide. Whether all are paused."""
    left = database.run(audit.schedules_left())
    for name, is_behind in left.items():
        if not is_behind:
            database.run(schedules.pause_schedule(name, by="soak", reason="the faults are over"))
    return not left
