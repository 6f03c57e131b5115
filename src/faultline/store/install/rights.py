"""Who may do what, as `roles.sql` grants it, and what a login lacks that was refused."""

from __future__ import annotations

import json
import re
from functools import cache

from faultline.store.install.schema_text import definition_files

#: What every role may read, and what those may who look at everything.
_FOR_ALL = {"faultline", "jobs", "migrations", "settings"}
_FOR_LOOKING = {"open_jobs", "ledger", "journal", "steps", "keys", "workers", "queues", "tallies", "samples", "api_keys"}
_LOOKING = ("faultline_viewer", "faultline_operator")
_OWNER = "only the owner of the schema faultline may do that: connect as that login"


def advice(refusal: str) -> str | None:
    """What to do about this refusal of the server (SQLSTATE 42501). The name that it is about comes last."""
    words = re.findall(r"\w+", refusal)
    name = words[-1] if words else ""
    if refusal.startswith("must be owner"):
        return "it belongs to another login: faultline doctor says whose it is and prints the statement that gives it back"
    if "database" in words:
        return f"as the owner of the database: grant create on database {name} to this login"
    roles = [role for role, granted in granted_verbs().items() if name in granted]
    if "function" not in words and (name in _FOR_ALL or name in _FOR_LOOKING):
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
