"""Who holds an API key. The database is asked, and its answer trusted for a moment (`Limits.key_seconds`), not longer."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING

from faultline.store import apikeys

if TYPE_CHECKING:
    from faultline.store.apikeys import ApiKey
    from faultline.web.service import Service

_REMEMBERED_MAX = 10_000


class Keys:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: OrderedDict[bytes, tuple[float, bytes, ApiKey]] = OrderedDict()
        self._none_until = 0.0
        self._some = False

    async def holder(self, digest: bytes) -> ApiKey | None:
        now = self._service.host.monotonic()
        # By a part of the digest, and then the whole of it in constant time.
        until, whole, key = self._known.get(digest[:8], (0.0, b"", None))
        if now < until and hmac.compare_digest(whole, digest):
            return key
        found = await self._service.read.run(apikeys.find(digest))
        if found is not None:
            self._known[digest[:8]] = (now + self._service.limits.key_seconds, digest, found)
            self._known.move_to_end(digest[:8])
            if len(self._known) > _REMEMBERED_MAX:
                self._known.popitem(last=False)
        return found

    async def needed(self) -> bool:
        """Whether a key must be shown: always, unless there has never been one and only this machine can reach us."""
        if self._some or not self._service.loopback_only:
            return True
        now = self._service.host.monotonic()
        if now >= self._none_until:
            self._some = await self._service.read.run(apikeys.exist())
            self._none_until = now + self._service.limits.key_seconds
        return self._some
