"""A worker's databases. Jobs never borrow the engine's connections: they could keep, break or alter them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.bounds import CLAIMS_AT_ONCE, JOB_CONNECTIONS_MAX
from faultline.core.pause import Pause
from faultline.core.settings import whole
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.heartbeat_session import session_name
from faultline.store.database import Database
from faultline.store.pool.fair_semaphore import Room
from faultline.store.pool.idle import IDLE_SECONDS
from faultline.store.pool.loans import Terms
from faultline.store.translation import is_about_the_moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.app.registry import Registry
    from faultline.store.database_facts import Facts

#: Longer than a worker's statements take (except upkeep's): they wait 10 s at most for a lock. After a failover, a claim or
#: completion that was sent to the old primary may hang this long; leases are kept meanwhile.
_ANSWER_SECONDS = 15.0
#: How long the engine waits for one of its own connections, and a job for an unreachable server.
_ROOM_SECONDS = 60.0
#: How long a worker that starts waits for its database, which may be starting, failing over or refusing for a moment.
_REACH_SECONDS = 30.0
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0


@dataclass(frozen=True, slots=True)
class Connections:
    """How many connections a worker process may have open at once, by what they are for. Most are opened when needed."""

    #: Claims, completions, upkeep. No task ever gets hold of one.
    engine: int
    #: For what jobs do: `job.transaction()`, steps, progress.
    jobs: int

    @classmethod
    def of(cls, queues: int, slots: int, jobs_max: int | None = None) -> Connections:
        """For a worker of so many queues, which runs so many jobs at once."""
        # With one more than claim at once: whatever takes long, there is one left for what is quick. A worker with a single
        # slot does one thing after the other: a hundred such workers would otherwise take twice as many.
        engine = 1 if slots == 1 else min(queues, CLAIMS_AT_ONCE) + 1
        jobs = JOB_CONNECTIONS_MAX if jobs_max is None else whole("job_connections_max", jobs_max)
        return cls(engine, min(slots, jobs))

    @property
    def most(self) -> int:
        """With the heartbeat's, the listener's and the companion's."""
        return self.engine + self.jobs + 3


class Databases:
    """The engine's own, and those that async and blocking jobs borrow."""

    def __init__(self, app: Registry, connections: Connections, worker_id: str) -> None:
        self.engine = of_engine(app, connections.engine, worker_id)
        self.jobs, self.blocking_jobs = _of_jobs(app, connections.jobs, worker_id)

    def know(self, facts: Facts) -> None:
        self.jobs.know(facts)
        self.blocking_jobs.know(facts)

    async def shrink(self) -> None:
        """Close idle connections: the server has a limited number for everyone."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 2)
            await self.engine.shrink()
            await self.jobs.shrink()
            self.blocking_jobs.shrink()

    async def close(self) -> None:
        await self.engine.close()
        await self.jobs.close()
        self.blocking_jobs.close()


def of_engine(app: Registry, connections: int, worker_id: str) -> AsyncDatabase:
    terms = Terms(Room(connections), room_seconds=_ROOM_SECONDS)
    return AsyncDatabase(
        app.dsn,
        for_worker=True,
        answer_seconds=_ANSWER_SECONDS,
        terms=terms,
        name=session_name(worker_id),
        host=app.host,
    )


def _of_jobs(app: Registry, connections: int, worker_id: str) -> tuple[AsyncDatabase, Database]:
    """Async and blocking jobs share one limit. A job that finds none free waits as long as it may run."""

    def report(size: int, waiting: int) -> None:
        events.emit("job_connections_short", worker=worker_id, connections=size, waiting=waiting)

    dsn, host, name = app.dsn, app.host, f"faultline job {worker_id}"
    room = Room(connections, report, monotonic=host.monotonic)
    terms = Terms(room, room_seconds=None, connect_seconds=_ROOM_SECONDS)
    return (
        AsyncDatabase(dsn, for_worker=True, answer_seconds=_ANSWER_SECONDS, terms=terms, name=name, host=host),
        Database(dsn, for_worker=True, answer_seconds=_ANSWER_SECONDS, terms=terms, name=name, host=host),
    )


async def wait_until_reachable(
    database: AsyncDatabase, worker: str | None, is_stopped: Callable[[], bool] = lambda: False
) -> Facts:
    """Its facts. Raises if waiting does not help, or after half a minute."""
    monotonic = database.host.monotonic
    give_up, pause = monotonic() + _REACH_SECONDS, Pause(_PAUSE_MIN, _PAUSE_MAX)
    while True:
        try:
            return await database.facts()
        except Exception as error:
            if not is_about_the_moment(error) or is_stopped() or monotonic() >= give_up:
                raise
            events.emit("database_unavailable", worker=worker, error=str(error))
        await asyncio.sleep(pause.next())


async def check_reachable(app: Registry) -> None:
    """For a parent of several workers: it reports an error once, instead of every child."""
    database = of_engine(app, 1, "parent")
    try:
        await wait_until_reachable(database, None)
    finally:
        await database.close()
