"""Who may do what, as `roles.sql` grants it, and which right a refused login lacks."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING

from faultline.store.install.schema_text import definition_files

if TYPE_CHECKING:
    import psycopg

#: What every role may read, and what the roles in `_LOOKING` may read besides.
_FOR_ALL = {"faultline", "jobs", "settings"}
_FOR_LOOKING = {
    "open_jobs", "ledger", "journal", "steps", "keys", "workers", "queues", "tallies", "samples", "api_keys",
    "flows", "calls", "edges", "signals", "nudges", "sweeps", "streams", "subscriptions", "unique_keys",
    "limits", "limited_queues", "groups", "group_events", "budgets",
    "schedules", "ticks",
}  # fmt: skip
_LOOKING = ("faultline_viewer", "faultline_operator")
_OWNER = "only the owner of the schema faultline may do that: connect as that login"


def advice(refusal: psycopg.Error) -> str | None:
    """What to do about this refusal of the server (SQLSTATE 42501).

    The server writes its message in the language of lc_messages, which only a superuser can set. So look for the name of the
    object in it, wherever it is. Only messages of this function of PostgreSQL contain one: another may mention `cancel`.
    """
    if refusal.diag.source_function != "aclcheck_error":
        return None
    names = re.findall(r"[a-z_]+", refusal.diag.message_primary or "")
    return next((right for name in reversed(names) if (right := right_to_use(name))), None)


def right_to_use(name: str) -> str | None:
    """What a login needs to call this function, or to read this table; None if it is not ours."""
    roles = [role for role, granted in granted_verbs().items() if name in granted]
    if name in _FOR_ALL or name in _FOR_LOOKING:
        roles = list(granted_verbs() if name in _FOR_ALL else _LOOKING)
    if roles:
        either = " or ".join(filter(None, (", ".join(roles[:-1]), roles[-1])))
        return f"connect as a login that was granted {either}"
    return _OWNER if name in _functions() else None


def verbs() -> set[str]:
    """The functions that some role may call. All others are called by our own functions only."""
    return {verb for granted in granted_verbs().values() for verb in granted}


@cache
def granted_verbs() -> dict[str, list[str]]:
    """Role → verbs, as roles.sql grants them."""
    (text,) = (definition.text for definition in definition_files() if definition.name == "roles")
    found = re.search(r"verbs constant jsonb := '(\{.*?\})'", text, re.DOTALL)
    assert found, "roles.sql must name the verbs of each role as JSON"  # noqa: S101 - a bug of ours
    granted: dict[str, list[str]] = json.loads(found[1])
    return {role: [*verbs, "now", "clock", "protocol"] for role, verbs in granted.items()}


def _functions() -> set[str]:
    return {definition.name for definition in definition_files() if definition.is_function}
