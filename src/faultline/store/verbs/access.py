"""Keys of the HTTP API. The database stores digests only, so a reader of the database cannot use them."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from faultline.core.journal import JournalEvent
from faultline.store.rows import Column, RowOf, value
from faultline.store.statement import Statement

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from datetime import datetime

SCOPES = ("read", "enqueue", "operate", "admin")
_TEXT = re.compile(r"fl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What a key lets its holder do."""

    id: UUID
    name: str
    scopes: frozenset[str]
    #: The queues whose jobs it may see and touch; None means all.
    queues: frozenset[str] | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ApiKeyLine:
    """A key in the list of keys, for people."""

    id: UUID
    name: str
    scopes: list[str]
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    #: Who did it, if the journal still has it: the name that was given, and the database login.
    created_by: str | None
    created_login: str | None
    revoked_by: str | None
    revoked_login: str | None


_KEY = RowOf(
    ApiKey,
    scopes=Column("scopes", frozenset),
    queues=Column("queues", lambda queues: None if queues is None else frozenset(queues)),
)
_LINE = RowOf(
    ApiKeyLine,
    created_by="added.detail ->> 'by'",
    created_login="added.detail ->> 'login'",
    revoked_by="revoked.detail ->> 'by'",
    revoked_login="revoked.detail ->> 'login'",
)


def new_key(chance: random.Random) -> tuple[UUID, str]:
    """A key's id, and its text, which is shown once. The text begins with the id, so that a leaked key can be revoked."""
    key_id = UUID(int=chance.getrandbits(128), version=4)
    secret = base64.urlsafe_b64encode(chance.randbytes(32)).rstrip(b"=").decode()
    return key_id, f"fl_{key_id.hex[:12]}_{secret}"


def digest_of(text: str) -> bytes | None:
    """The digest of a key's text; None if the text cannot be a key, so that no query is needed."""
    return hashlib.sha256(text.encode()).digest() if _TEXT.fullmatch(text) else None


def add(
    key_id: UUID,
    digest: bytes,
    *,
    name: str,
    scopes: Sequence[str],
    queues: Sequence[str] | None = None,
    valid_seconds: float | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> Statement[datetime | None]:
    """Add a key. Returns when it expires."""
    return Statement(
        name="add_api_key",
        sql="select faultline.add_api_key(%s, %s, %s, %s::text[], %s::text[], make_interval(secs => %s), %s, %s)",
        params=(key_id, digest, name, list(scopes), None if queues is None else list(queues), valid_seconds, by, reason),
        read=value,
    )


def revoke(key_id: UUID, *, by: str | None = None, reason: str | None = None) -> Statement[bool]:
    """Revoke a key. Returns whether there is such a key."""
    sql = "select faultline.revoke_api_key(%s, %s, %s)"
    return Statement("revoke_api_key", sql, (key_id, by, reason), value, repeatable=True)


def find(digest: bytes) -> Statement[ApiKey | None]:
    """The valid key with this digest."""
    return Statement(
        name="api_key",
        sql=f"select {_KEY.columns} from faultline.api_key(%s)",
        params=(digest,),
        read=_KEY.first,
        repeatable=True,
    )


def exist() -> Statement[bool]:
    """Whether there is any key, valid or not."""
    return Statement(
        name="api_keys_exist",
        sql="select exists (select k.id from faultline.api_keys k)",
        params=(),
        read=value,
        repeatable=True,
        reads=True,
    )


def lines() -> Statement[list[ApiKeyLine]]:
    """All keys, newest first, without their digests."""
    return Statement(
        name="api_keys",
        sql=f"select {_LINE.columns} from faultline.api_keys k {_journal('added', JournalEvent.API_KEY_ADDED)}"
        f" {_journal('revoked', JournalEvent.API_KEY_REVOKED)}"
        " order by k.created_at desc, k.id",
        params=(),
        read=_LINE.many,
        repeatable=True,
        reads=True,
    )


def _journal(done: str, event: JournalEvent) -> str:
    return (
        "left join lateral (select j.detail from faultline.journal j"
        f" where j.job_id is null and j.event = '{event}' and j.detail ->> 'key' = k.id::text"
        f" order by j.id desc limit 1) {done} on true"
    )
