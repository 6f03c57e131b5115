"""Decide about the ticks of schedules, and say which schedules this worker's code declares.

Every worker does both, and none leads: the database takes each decision from whoever is first, and the others find that the
position has moved. So there is nothing that could fail over.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.errors import DatabaseUnavailable, OutcomeUnknown, PermissionDenied
from faultline.core.pause import Pause
from faultline.core.schedules import CATCH_UP_SECONDS, FIRE_MAX, Rule, plan
from faultline.store.verbs import schedules as verbs
from faultline.store.verbs.schedules import Decision

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from faultline.core.schedules import Plan
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.verbs.schedules import Declaration, DueSchedule
    from faultline.worker.base.counters import Tally

LOOK_SECONDS = 1.0
#: How often a worker asks whether it should declare a schedule again: after a deployment the last worker of the old code
#: may have gone.
DECLARE_SECONDS = 5.0
_DUE_MAX, _ROUNDS_MAX = 100, 20
#: What was missed for longer is computed in a thread: the event loop must not wait for it.
_LATE_SECONDS = 3600.0
_PAUSE_MIN, _PAUSE_MAX = 0.5, 10.0


class Scheduler:
    """One per worker."""

    def __init__(
        self,
        database: AsyncDatabase,
        worker_id: str,
        declarations: Sequence[Declaration],
        chance: random.Random,
        tally: Tally,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._declarations = {one.name: one for one in declarations}
        self.digests = [one.digest for one in declarations]
        self._chance = chance
        self._tally = tally
        self._is_declared = not declarations
        self._declare_at = 0.0
        self._pause = Pause(_PAUSE_MIN, _PAUSE_MAX)

    async def begin(self) -> None:
        """Before the worker says that it has started. What fails here is tried again."""
        if self._is_declared:
            return
        try:
            await self._declare(list(self._declarations.values()))
            self._is_declared = True
        except Exception as error:  # noqa: BLE001 - the worker has other work to do
            self._tally.database_failed()
            events.emit("declare_failed", worker=self._worker_id, error=str(error))

    async def run(self) -> None:
        """Ends only when cancelled."""
        while True:
            # Jittered: workers that started together should not look at the same moment.
            await asyncio.sleep(LOOK_SECONDS * self._chance.uniform(0.75, 1.25))
            try:
                await self.tick()
                await self._declare_again()
            except Exception as error:  # noqa: BLE001 - any error: try again
                self._tally.database_failed()
                events.emit("schedules_failed", worker=self._worker_id, error=str(error))
                await asyncio.sleep(self._pause.next() * self._chance.uniform(0.75, 1.25))
            else:
                self._pause.reset()

    async def tick(self) -> int:
        """Decide about all ticks that are due. Returns how many made a job.

        Each schedule is looked at once: those that are locked must not keep the others from being seen.
        """
        fired = 0
        looked_at: set[str] = set()
        for _ in range(_ROUNDS_MAX):
            due = await self._database.run(verbs.due_schedules(self.digests, _DUE_MAX, but_not=looked_at))
            looked_at.update(one.name for one in due)
            for batch in batches(await self._planned(due)):
                fired += await self._decide(batch)
            if len(due) < _DUE_MAX:
                break
        return fired

    async def _planned(self, due: Sequence[DueSchedule]) -> list[Decision]:
        found = []
        for one in due:
            try:
                found.append(Decision(one, await self._plan(one)))
            except Exception as error:  # noqa: BLE001 - of this schedule: the others go on
                await self._failed(one, str(error))
        return found

    async def _decide(self, batch: Sequence[Decision]) -> int:
        try:
            ticked = await self._database.run(verbs.tick_many(batch))
        except (DatabaseUnavailable, OutcomeUnknown, PermissionDenied):
            raise
        except Exception as error:  # noqa: BLE001 - of one schedule: the others go on
            if len(batch) > 1:
                return sum([await self._decide([one]) for one in batch])
            await self._failed(batch[0].due, str(error))
            return 0
        due = {one.due.name: one.due for one in batch}
        for one in ticked:
            if one.error is not None:
                await self._failed(due[one.name], one.error)
        return sum(one.outcome == "fired" for one in ticked)

    async def _plan(self, due: DueSchedule) -> Plan:
        since = due.next_at or due.since
        if (due.clock - since).total_seconds() > _LATE_SECONDS:
            return await asyncio.to_thread(planned, due)
        # Many may be due at once: the event loop goes on between them.
        await asyncio.sleep(0)
        return planned(due)

    async def _failed(self, due: DueSchedule, error: str) -> None:
        text = error.splitlines()[0] if error else "unknown"
        if await self._database.run(verbs.schedule_failed(due, text)):
            events.emit("schedule_failed", schedule=due.name, error=text)

    async def _declare_again(self) -> None:
        """What is not in force and could be: the last worker with other code has gone, or somebody removed it."""
        now = asyncio.get_running_loop().time()
        if not self._declarations or now < self._declare_at:
            return
        self._declare_at = now + DECLARE_SECONDS * self._chance.uniform(0.75, 1.25)
        if not self._is_declared:
            await self.begin()
            return
        stale = await self._database.run(verbs.stale_schedules(list(self._declarations), self.digests))
        if stale:
            await self._declare([self._declarations[name] for name in stale])

    async def _declare(self, declarations: list[Declaration]) -> None:
        for start in range(0, len(declarations), verbs.DECLARED_AT_ONCE):
            some = declarations[start : start + verbs.DECLARED_AT_ONCE]
            for one in await self._database.run(verbs.declare_schedules(self._worker_id, some)):
                # Waiting: another declaration of this name is in force, of code that a living worker has.
                if one.outcome in {"made", "taken", "waiting"}:
                    events.emit("schedule_declared", schedule=one.name, outcome=one.outcome, worker=self._worker_id)


def batches(decisions: Sequence[Decision]) -> Iterator[list[Decision]]:
    """What is decided together, with no more ticks than one schedule may have.

    A schedule with a unique job stands alone: a submission locks its keys in one order, and several of them would not.
    """
    batch: list[Decision] = []
    ticks = 0
    for one in decisions:
        if (one.due.spec.get("job") or {}).get("unique") is not None:
            yield [one]
            continue
        if batch and (len(batch) == verbs.DECIDED_AT_ONCE or ticks + len(one.plan.fire) > FIRE_MAX):
            yield batch
            batch, ticks = [], 0
        batch.append(one)
        ticks += len(one.plan.fire)
    if batch:
        yield batch


def planned(due: DueSchedule) -> Plan:
    """What is to be decided. By the database's time, from the position that it has stored."""
    rule = Rule.of(due.spec)
    window = due.spec.get("catch_up_seconds")
    return plan(
        rule,
        due.next_at or rule.after(due.since),
        due.clock,
        catch_up=due.spec.get("catch_up") or "latest",
        catch_up_seconds=CATCH_UP_SECONDS if window is None else float(window),
    )
