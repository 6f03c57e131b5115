"""Pause and resume a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.operate import who
from faultline.operate.logged import logged
from faultline.store import verbs

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.store.statement import Statement


def pause(name: str, *, reason: str | None = None, by: str | None = None) -> Statement[datetime]:
    """Pause a queue: workers stop claiming from it. Returns since when."""
    who.check(by, reason)
    return logged(verbs.pause(name, reason, by=by), "queue_paused_by_request", queue=name, by=by, reason=reason)


def resume(name: str, *, reason: str | None = None, by: str | None = None) -> Statement[bool]:
    """Resume a queue: workers claim from it again. Returns whether it was paused."""
    who.check(by, reason)
    statement = verbs.resume(name, by=by, reason=reason)
    return logged(statement, "queue_resumed_by_request", done=bool, queue=name, by=by, reason=reason)
