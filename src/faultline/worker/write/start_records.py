"""Record starts before they happen, in batches: a job that may have killed its worker is marked before it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.pause import Pause
from faultline.store import verbs
from faultline.worker.write.batcher import Batcher

if TYPE_CHECKING:
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.lease_table import Leases

_PAUSE_MIN, _PAUSE_MAX = 0.05, 2.0
_BUSY_PAUSE_MIN, _BUSY_PAUSE_MAX = 0.02, 0.5


class Marks:
    def __init__(self, database: AsyncDatabase, leases: Leases, tally: Tally) -> None:
        self._database = database
        self._leases = leases
        self._tally = tally
        self._asked: Batcher[tuple[HeldLease, asyncio.Future[bool | None]]] = Batcher(self._send)

    async def mark(self, hold: HeldLease) -> bool:
        """Record the start. False: the lease is lost, do not run.

        A busy row is locked for a moment: ask again as long as the lease can be trusted, outside the batch, so that its
        other jobs need not wait.
        """
        pause = Pause(_BUSY_PAUSE_MIN, _BUSY_PAUSE_MAX)
        while hold.lost is None:
            answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
            self._asked.put((hold, answer))
            is_on_record = await answer
            if is_on_record is not None:
                return is_on_record
            await asyncio.sleep(pause.next())
        return False

    async def _send(self, asked: list[tuple[HeldLease, asyncio.Future[bool | None]]]) -> None:
        """Ask until the database answers: an error says nothing about the jobs. Lost leases do not wait."""
        pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        for hold, answer in asked:
            if self._leases.in_doubt(hold) and not answer.done():
                answer.set_result(False)
        while waiting := [one for one in asked if not one[1].done()]:
            try:
                unwritten = await self._database.run(verbs.record_start([hold.lease for hold, _ in waiting]))
            except Exception as error:  # noqa: BLE001 - jobs wait for the answer
                self._tally.database_failed()
                events.emit("mark_failed", jobs=len(waiting), error=str(error))
                await asyncio.sleep(pause.next())
                for hold, answer in waiting:
                    if hold.lost is not None and not answer.done():
                        answer.set_result(False)
                continue
            why = {refusal.lease: refusal.reason for refusal in unwritten.stale}
            for hold, answer in waiting:
                if hold.lease in why:
                    hold.counts.refuse("record_start", why[hold.lease])
                    hold.lose(why[hold.lease])
                if not answer.done():
                    answer.set_result(None if hold.lease in unwritten.busy else hold.lease not in why)
