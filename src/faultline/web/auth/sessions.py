"""Sessions of the dashboard. They live only in this process: a restart signs everybody out.

A session keeps the digest of its API key and looks it up at every request: revoking a key ends its sessions.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

COOKIE = "faultline_session"
IDLE_SECONDS = 30 * 60.0
AGE_SECONDS = 12 * 3600.0
_SESSIONS_MAX = 1000
#: Per key, so that nobody can sign others out by signing in again and again.
_SESSIONS_KEY_MAX = 20


@dataclass(slots=True)
class Session:
    id: str
    #: Of the key that opened it.
    digest: bytes
    #: Sent back with every form, as the field `csrf` or the header `X-CSRF-Token`.
    csrf: str
    opened_at: float
    used_at: float


class Sessions:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def open(self, digest: bytes) -> Session:
        """A new session with a new id: an id that an attacker planted in a browser is never used."""
        now = self._monotonic()
        session = Session(secrets.token_urlsafe(32), digest, secrets.token_urlsafe(32), now, now)
        same = [known.id for known in self._sessions.values() if known.digest == digest]
        for oldest in same[: len(same) - _SESSIONS_KEY_MAX + 1]:
            self.close(oldest)
        self._sessions[session.id] = session
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session

    def find(self, session_id: str | None) -> Session | None:
        """The session, if it is still valid. Each use keeps it alive."""
        session = self._sessions.get(session_id or "")
        if session is None:
            return None
        now = self._monotonic()
        if now - session.used_at > IDLE_SECONDS or now - session.opened_at > AGE_SECONDS:
            self.close(session.id)
            return None
        session.used_at = now
        self._sessions.move_to_end(session.id)
        return session

    def close(self, session_id: str | None) -> None:
        self._sessions.pop(session_id or "", None)
