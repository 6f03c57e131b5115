"""Create and revoke keys of the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store.verbs import access

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from faultline.store.statement import Statement


def add_key(
    key_id: UUID,
    digest: bytes,
    *,
    name: str,
    scopes: Sequence[str],
    queues: Sequence[str] | None = None,
    valid_seconds: float | None = None,
    reason: str | None = None,
    by: str | None = None,
) -> Statement[datetime | None]:
    """Add a key. Returns when it expires."""
    actor.check(by, reason)
    statement = access.add(
        key_id, digest, name=name, scopes=scopes, queues=queues, valid_seconds=valid_seconds, by=by, reason=reason
    )
    return logged(statement, "api_key_added", key_id=key_id, name=name, scopes=",".join(scopes), by=by, reason=reason)


def revoke_key(key_id: UUID, *, reason: str | None = None, by: str | None = None) -> Statement[bool]:
    """Revoke a key. Returns whether there is such a key."""
    actor.check(by, reason)
    statement = access.revoke(key_id, by=by, reason=reason)
    return logged(statement, "api_key_revoked", done=bool, key_id=key_id, by=by, reason=reason)
