"""What a claim got: known for certain, and kept even if the server crashes.

A claim of a queue with limits holds a lock until its commit, and the next claims wait for it. Where a commit takes long, it
does not wait for the disk: then nothing of it may run before that is made up for. A crash would take the claim back, and
another one would be given the same tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.pause import Pause
from faultline.store import verbs

if TYPE_CHECKING:
    import random

    from faultline.core.model import Lease
    from faultline.store.async_database import AsyncDatabase

#: A claim that takes longer waits for the disk or for others.
_SLOW_SECONDS = 0.004
#: How long a slow claim is put off at most, so that it gets more, and how many are enough.
_GATHER_SECONDS_MAX, _ENOUGH = 0.02, 10
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0


async def gather(claim_seconds: float, wanted: int, slots: int) -> None:
    """Before a claim of a queue with limits: wait for more slots to be free, for half as long as claims take. It holds
    others up, and a larger one costs hardly more. Not where claims are quick, or many slots are free.
    """
    if claim_seconds > _SLOW_SECONDS and wanted < min(slots // 2, _ENOUGH):
        await asyncio.sleep(min(claim_seconds / 2, _GATHER_SECONDS_MAX))


class Syncing:
    """Whether the claims of a queue with limits leave the wait for the disk to a statement after them.

    Where they wait for each other, yes: then nobody waits for another's disk write. Where they wait for the disk alone, it
    would be one statement more for nothing. The two are told apart by how long the disk takes.
    """

    needed = False
    #: On average, in seconds: claims that waited for the disk themselves, those that did not, and the waits after those.
    _whole = _bare = _disk = 0.0

    def answered(self, claim: float, sync: float | None) -> None:
        """A claim took so many seconds, and the wait for the disk after it. None: there was none."""
        if sync is not None:
            self._bare += (claim - self._bare) / 4
            self._disk += (sync - self._disk) / (4 if self._disk else 1)
            if self._bare < self._disk or self._bare + self._disk < _SLOW_SECONDS:
                self.needed, self._whole = False, self._bare + self._disk
        elif not self.needed:
            self._whole += (claim - self._whole) / 4
            self._disk = min(self._disk, self._whole)
            self.needed, self._bare = self._whole > _SLOW_SECONDS + 2 * self._disk, self._whole


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
