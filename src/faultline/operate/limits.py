"""Set the limits of a queue and its groups, and go back to what the code declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.bounds import QUEUE_LENGTH_MAX
from faultline.core.checks import check_name, check_queue
from faultline.core.errors import JobRejected
from faultline.core.limits import EACH_GROUP, WHOLE_QUEUE, check_budget, check_fields, check_group
from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store.verbs import budget as verbs
from faultline.store.verbs import limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.store.statement import Statement


def set_limit(
    queue: str, group: str, fields: Mapping[str, Any], *, reason: str | None = None, by: str | None = None
) -> Statement[None]:
    """Set fields of a limit, over those that the code declares. None as a value is no limit.

    `group`: "" is the queue as a whole, "*" each of its groups. Fields that are not named stay as they are.
    """
    actor.check(by, reason)
    _check_names(queue, group)
    check_fields(fields, whole_queue=group == WHOLE_QUEUE)
    statement = limit.set_limit(queue, group, fields, by=by, reason=reason)
    said = ", ".join(f"{name}={'none' if value is None else value}" for name, value in sorted(fields.items()))
    return logged(statement, "limit_set_by_request", queue=queue, group=group, limit=said, by=by, reason=reason)


def reset_limit(
    queue: str, group: str = WHOLE_QUEUE, *, reason: str | None = None, by: str | None = None
) -> Statement[bool]:
    """Undo what people have set for it: what the code declares counts again. Returns whether anything was set."""
    actor.check(by, reason)
    _check_names(queue, group)
    statement = limit.reset_limit(queue, group, by=by, reason=reason)
    return logged(statement, "limit_reset_by_request", done=bool, queue=queue, group=group, by=by, reason=reason)


def set_budget(
    budget: str, fields: Mapping[str, Any], *, reason: str | None = None, by: str | None = None
) -> Statement[bool]:
    """Set `rate`, `per` and `burst` of a budget, over what the code declares."""
    actor.check(by, reason)
    check_budget(budget)
    check_fields(fields)
    if fields.get("rate") is None or fields.keys() - {"rate", "per", "burst"}:
        raise JobRejected(f"budget {budget} must have a rate, with per and burst, and nothing else")
    statement = verbs.set_budget(budget, fields, by=by, reason=reason)
    said = ", ".join(f"{name}={value}" for name, value in sorted(fields.items()))
    return logged(statement, "budget_set_by_request", budget=budget, limit=said, by=by, reason=reason)


def reset_budget(budget: str, *, reason: str | None = None, by: str | None = None) -> Statement[bool]:
    """Undo what people have set for it: what the code declares counts again. One that no code declares is removed."""
    actor.check(by, reason)
    check_budget(budget)
    statement = verbs.set_budget(budget, None, by=by, reason=reason)
    return logged(statement, "budget_reset_by_request", budget=budget, by=by, reason=reason)


def _check_names(queue: str, group: str) -> None:
    check_name("the name of a queue", queue, QUEUE_LENGTH_MAX)
    check_queue(queue)
    if group not in (WHOLE_QUEUE, EACH_GROUP):
        check_group(group)
