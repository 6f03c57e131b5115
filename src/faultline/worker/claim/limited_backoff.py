"""How long a feed rests that got less than it wanted from a queue with limits.

Whoever makes a claim possible notifies: by an enqueue, by a change of limits. Its own endings free permits too. Nobody
notifies of what time alone makes possible, a token of a rate above all: the feed asks when that is, and comes then.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.store.verbs import limit

if TYPE_CHECKING:
    import random

    from faultline.store.async_database import AsyncDatabase

#: How long an answer counts that nothing is foreseen. A delayed job that is enqueued meanwhile waits that long at most.
_UNFORESEEN_SECONDS = 0.5
_REST_SECONDS_MIN, _REST_SECONDS_MAX = 0.001, 0.5
#: After how long another worker may claim first, and how long it is given.
_OFFER_SECONDS, _OFFERED_SECONDS = 1.0, 0.05
#: Workers that wait for the same moment come one after another, within so much of the time that they waited.
_SPREAD, _SPREAD_SECONDS_MAX = 0.1, 0.02


class LimitedBackoff:
    """The next turn of one queue."""

    def __init__(self, queue: str, worker_id: str, database: AsyncDatabase, chance: random.Random) -> None:
        self._queue = queue
        self._worker_id = worker_id
        self._database = database
        #: When to let others come first: so long after it was granted something.
        self._offers_at = math.inf
        self._chance = chance
        self._unforeseen_until = 0.0
        self._in_vain = 0

    def granted(self) -> None:
        if self._offers_at == math.inf:
            self._offers_at = asyncio.get_running_loop().time() + _OFFER_SECONDS

    async def offer(self) -> None:
        """Now and then, let another worker that waits for a permit claim first. With as many slots as there are permits,
        this one would get each of them back for as long as there are jobs.
        """
        now = asyncio.get_running_loop().time()
        if now < self._offers_at:
            return
        self._offers_at = math.inf
        try:
            offered = await self._database.run(limit.yield_to_waiting_worker(self._queue, self._worker_id))
        except Exception as error:  # noqa: BLE001 - any error: it claims, as it would have
            events.emit("claim_failed", queue=self._queue, error=str(error))
            return
        if offered:
            await asyncio.sleep(_OFFERED_SECONDS)

    async def rest_seconds(self, claim_seconds: float, *, found: bool, anew: bool) -> float:
        """How long to rest at most, after a claim that took so long and got less than it wanted. `anew`: ask anyway."""
        now = asyncio.get_running_loop().time()
        self._in_vain = 0 if found else self._in_vain + 1
        # Something is there that it did not get: a row that somebody has locked, a lock that was held for too long.
        again: float = max(_REST_SECONDS_MIN, claim_seconds) * 2 ** min(self._in_vain, 10)
        if now < self._unforeseen_until and not anew:
            return _REST_SECONDS_MAX
        try:
            seconds = await self._database.run(limit.next_claim_at(self._queue))
        except Exception as error:  # noqa: BLE001 - any error: it claims again
            events.emit("claim_failed", queue=self._queue, error=str(error))
            return _REST_SECONDS_MAX
        if seconds is None:
            self._unforeseen_until = now + _UNFORESEEN_SECONDS
            return _REST_SECONDS_MAX
        if seconds == -math.inf:
            self._in_vain = 0
            return 0.0
        if seconds > 0:
            again = max(seconds, again if self._in_vain > 1 else _REST_SECONDS_MIN)
            again += self._chance.uniform(0.0, min(_SPREAD * seconds, _SPREAD_SECONDS_MAX))
        return min(again, _REST_SECONDS_MAX)
