"""What a claim got: known for certain, and kept even if the server crashes.

A claim of a queue with limits holds a lock until its commit, and the next claims wait for it. Where a commit takes long, it
does not wait for the disk: then nothing of it may run before that is made up for. A crash would take the claim back, and
another one would be given the same tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.backoff import Pause
from faultline.store import verbs

if TYPE_CHECKING:
    import random

    from faultline.core.model import Lease
    from faultline.store.async_database import AsyncDatabase

#: A claim that takes longer waits for the disk or for others: from there on, a second statement is the lesser evil.
SLOW_CLAIM_SECONDS = 0.004
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0


async def claimed_by(database: AsyncDatabase, queue: str, owner: str, chance: random.Random) -> list[Lease]:
    """The answer to a claim was lost. Read which jobs it got, or they would wait until their leases expire."""
    pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
    while True:
        try:
            leases = await database.run(verbs.claimed_by(owner))
        except Exception as error:  # noqa: BLE001 - any error: ask again
            events.emit("claim_unanswered", queue=queue, error=str(error))
            await asyncio.sleep(pause.next() * chance.uniform(0.5, 1.5))
        else:
            events.emit("claim_answered_late", queue=queue, jobs=len(leases))
            return leases


async def synced(database: AsyncDatabase, queue: str, owner: str, chance: random.Random, leases: list[Lease]) -> list[Lease]:
    """These leases, once no crash can take them back; or what is left of them after one."""
    while leases:
        try:
            if await database.run(verbs.sync_claim(leases[0])):
                break
        except Exception as error:  # noqa: BLE001 - any error: look what there is
            events.emit("claim_unanswered", queue=queue, error=str(error))
        leases = await claimed_by(database, queue, owner, chance)
    return leases
