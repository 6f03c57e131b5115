"""Pause and resume a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.bounds import QUEUE_LENGTH_MAX
from faultline.core.checks import check_name, check_queue
from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store import verbs

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.store.statement import Statement


def pause(name: str, *, reason: str | None = None, by: str | None = None) -> Statement[datetime]:
    """Pause a queue: workers stop claiming from it. Returns since when."""
    actor.check(by, reason)
    _check_name(name)
    return logged(verbs.pause(name, reason, by=by), "queue_paused_by_request", queue=name, by=by, reason=reason)


def resume(name: str, *, reason: str | None = None, by: str | None = None) -> Statement[bool]:
    """Resume a queue: workers claim from it again. Returns whether it was paused."""
    actor.check(by, reason)
    _check_name(name)
    statement = verbs.resume(name, by=by, reason=reason)
    return logged(statement, "queue_resumed_by_request", done=bool, queue=name, by=by, reason=reason)


def _check_name(name: str) -> None:
    check_name("the name of a queue", name, QUEUE_LENGTH_MAX)
    check_queue(name)
