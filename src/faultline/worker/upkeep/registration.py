"""Say at its start what a worker has: which tasks and how many connections, for `faultline doctor`; to which topics these
tasks are subscribed; and which code, for jobs whose program did not fit another.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.store import verbs
from faultline.worker.run.flow_judge import code_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from faultline.app.tasks import Task
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.statement import Statement
    from faultline.worker.base.counters import Tally
    from faultline.worker.upkeep.limit_declarations import Declaring

_ANNOUNCE_SECONDS, _LISTED_SECONDS = 60.0, 0.5
_SUBSCRIBE_SECONDS = 5.0


class Announcing:
    """Repeats it: the row of a worker that was removed by mistake comes back empty with its next heartbeat."""

    def __init__(
        self,
        database: AsyncDatabase,
        worker_id: str,
        queues: Iterable[str],
        tasks: Mapping[str, Task[..., Any]],
        connections_max: int,
        tally: Tally,
        schedules: Sequence[str] = (),
        declaring: Declaring | None = None,
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._declaring = declaring
        self._budgets = () if declaring is None else declaring.budgets
        self._limits = () if declaring is None else declaring.queues
        self._queues = list(queues)
        self._tasks = tasks
        self._connections_max = connections_max
        self._tally = tally
        self._schedules = schedules

    async def run(self) -> None:
        # Where there are none, nothing is declared again.
        declaring = self._declaring if self._budgets else None
        while True:
            pause = _ANNOUNCE_SECONDS
            try:
                said = verbs.announce(
                    self._worker_id,
                    sorted(self._tasks),
                    self._connections_max,
                    self._schedules,
                    self._budgets,
                    self._limits,
                )
                if not await self._database.run(said):
                    pause = _LISTED_SECONDS
                elif declaring is not None:
                    await declaring.again()
                    declaring = None
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                self._tally.database_failed()
                events.emit("announce_failed", worker=self._worker_id, error=str(error))
            await asyncio.sleep(pause)

    async def wake_changed_programs(self) -> None:
        """Make jobs due that stopped because their program did not fit other code. Once: this code is there from now on."""
        # Only a program that takes its job makes calls, and has a history that code may not fit.
        tasks = sorted(name for name, task in self._tasks.items() if task.takes_job)
        if not tasks:
            return
        try:
            tried = await self._database.run(verbs.wake_changed_programs(self._queues, tasks, code_digest(self._tasks)))
        except Exception as error:  # noqa: BLE001 - they are tried in their time
            events.emit("changed_programs_not_tried", worker=self._worker_id, error=str(error))
        else:
            if tried:
                events.emit("changed_programs_due", worker=self._worker_id, jobs=tried)


class Subscribing:
    """Writes them once: a build that starts later has the last word about its tasks."""

    def __init__(self, database: AsyncDatabase, worker_id: str, wanted: Sequence[Statement[bool]], tally: Tally) -> None:
        self._database = database
        self._worker_id = worker_id
        self._wanted = wanted
        self._tally = tally
        self._is_done = not wanted

    async def begin(self) -> None:
        """Before the worker says that it has started: what is published then finds its tasks."""
        if self._is_done:
            return
        try:
            await self._database.run_all(list(self._wanted))
            self._is_done = True
        except Exception as error:  # noqa: BLE001 - the worker has other work to do
            self._tally.database_failed()
            events.emit("subscribe_failed", worker=self._worker_id, error=str(error))

    async def run(self) -> None:
        while not self._is_done:
            await asyncio.sleep(_SUBSCRIBE_SECONDS)
            await self.begin()
