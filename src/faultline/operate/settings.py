"""Change settings of the whole database: size limits, and how long ended jobs are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store import verbs

if TYPE_CHECKING:
    from faultline.store.statement import Statement


def change_setting(name: str, value: int, *, reason: str | None = None, by: str | None = None) -> Statement[int]:
    """Change one setting. Returns its value before."""
    actor.check(by, reason)
    statement = verbs.change_setting(name, value, reason, by=by)
    return logged(statement, "setting_changed", setting=name, value=value, by=by, reason=reason)
