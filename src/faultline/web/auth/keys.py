"""Look up API keys. The database's answer is trusted for a moment (`Limits.key_seconds`), not longer.

Requests with the same key at the same time cause one lookup. A client that tries invalid keys has to wait before the next
lookup.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

from faultline.store.verbs import access
from faultline.web.auth.rate_limit import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from faultline.store.verbs.access import ApiKey
    from faultline.web.server.databases import Databases

T = TypeVar("T")
_REMEMBERED_MAX = 10_000
#: Wrong keys from one address: per second in the long run, and at once.
_WRONG_PER_SECOND, _WRONG_BURST = 5.0, 50.0


class Keys:
    def __init__(self, databases: Databases, *, loopback_only: bool) -> None:
        self._databases = databases
        self._loopback_only = loopback_only
        #: By a part of the digest: until when it is trusted, the whole digest, and its caller.
        self._known: OrderedDict[bytes, tuple[float, bytes, ApiKey]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Any]] = {}
        self._wrong = Bucket(_WRONG_PER_SECOND, _WRONG_BURST, databases.host.monotonic)
        self._none_until = 0.0
        self._some = False

    async def holder(self, digest: bytes, *, address: str = "") -> ApiKey | None:
        until, whole, key = self._known.get(digest[:8], (0.0, b"", None))
        seen = hmac.compare_digest(whole, digest)
        if seen and self._databases.host.monotonic() < until:
            return key
        if not seen:
            self._wrong.look(address)
        found = await self._once(digest, lambda: self._ask(digest))
        if found is None:
            self._wrong.take(address)
        return found

    async def needed(self) -> bool:
        """Whether a key is needed: always, unless there has never been one and only this machine can reach the server."""
        if self._some or not self._loopback_only:
            return True
        if self._databases.host.monotonic() >= self._none_until:
            await self._once(b"", self._ask_for_any)
        return self._some

    async def _ask(self, digest: bytes) -> ApiKey | None:
        # Counted from before the round trip: a slow answer must not lengthen the trust.
        until = self._databases.host.monotonic() + self._databases.limits.key_seconds
        found = await self._databases.read.run(access.find(digest))
        self._known.pop(digest[:8], None)
        if found is not None:
            self._known[digest[:8]] = (until, digest, found)
            if len(self._known) > _REMEMBERED_MAX:
                self._known.popitem(last=False)
        return found

    async def _ask_for_any(self) -> None:
        until = self._databases.host.monotonic() + self._databases.limits.key_seconds
        self._some = await self._databases.read.run(access.exist())
        self._none_until = until

    async def _once(self, what: bytes, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Join a lookup that is running. A request that is cancelled does not cancel it for the others."""
        task: asyncio.Task[T] | None = self._asking.get(what)
        if task is None:
            task = self._asking[what] = asyncio.create_task(ask())
            task.add_done_callback(lambda _: self._asking.pop(what, None))
        return await asyncio.shield(task)
