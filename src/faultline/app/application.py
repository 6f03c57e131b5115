"""The application: register tasks, enqueue jobs, look them up. The database makes every decision."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from faultline import embedded
from faultline.app import processes
from faultline.app.batch_tasks import Batches
from faultline.app.decorators import Decorators
from faultline.app.enqueue import Submitting
from faultline.app.graphs import COLLECT, Graphs, built_in
from faultline.app.handle import JobHandle, Poller
from faultline.app.hooks import Hooks
from faultline.app.operations import Operations
from faultline.app.queues import Queues
from faultline.app.schedules import Scheduling
from faultline.app.topics import Topics
from faultline.attempt.options import id_of
from faultline.attempt.unawaited import must_await
from faultline.core.bounds import CONCURRENCY
from faultline.core.database_time import DatabaseTime
from faultline.core.dsn import LiveDsn, current
from faultline.core.errors import ConfigError, JobNotFound
from faultline.core.host import Host
from faultline.core.ids import Ids
from faultline.core.settings import choose_dsn, choose_timeout, whole
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.connecting import url_of
from faultline.store.database import Database
from faultline.store.reads import views

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from faultline.app.tasks import Task
    from faultline.core.model import JobRecord
    from faultline.core.settings import WorkerOptions
    from faultline.worker.worker import Worker

R = TypeVar("R")


class Faultline(Submitting, Decorators, Batches, Graphs, Hooks, Operations, Queues, Scheduling, Topics):
    """One application on one database. Connects when first used; safe to share between threads and event loops.

    :param dsn: The database: `postgresql://…`, or `embedded:` for a private PostgreSQL in this folder. Or a function that
        returns it, called for every new connection, for passwords that rotate. Default: FAULTLINE_DSN, else DATABASE_URL.
    :param connections_max: Connections that calls of this program may use at once. Further calls wait.
    :param timeout: How many seconds one call (enqueue, cancel, job, …) may wait for the database: for a free connection,
        for connecting, for the answer. Then it raises `DatabaseUnavailable` if nothing was sent, else `OutcomeUnknown`.
        Default: FAULTLINE_TIMEOUT, else 30; `math.inf` for no limit. A call of several statements may wait that long for
        each.
    :param host: Time, chance and faults, for tests: see `faultline.testing`.
    """

    def __init__(
        self,
        dsn: str | Callable[[], str] | None = None,
        *,
        connections_max: int = 10,
        timeout: float | None = None,
        host: Host | None = None,
    ) -> None:
        super().__init__()
        if not (dsn is None or isinstance(dsn, str) or callable(dsn)):  # callers without a type checker
            raise ConfigError(
                f"Faultline takes a DSN, such as 'postgresql://user@host/db', or a function of one, not {dsn!r:.80}"
            )
        self._named = dsn
        self._timeout = choose_timeout(timeout)
        self.host = host or Host()
        self._connections_max = whole("connections_max", connections_max)
        self._time = DatabaseTime(self.host.monotonic, self.host.seconds)
        self._ids = Ids(self._time.seconds, self.host.chance)
        self._opening = threading.Lock()
        self._server: embedded.Server | None = None
        #: The registered tasks by their names.
        self.tasks: dict[str, Task[..., Any]] = {}
        #: How many new jobs this process has enqueued, by queue. It counts those that the caller rolled back afterwards.
        self.enqueued: Counter[str] = Counter()
        os.register_at_fork(after_in_child=_weakly(self._after_fork))

    def job(self, job_id: UUID | str) -> JobRecord:
        """Look up a job, open or ended. Raises `JobNotFound`.

        :param job_id: Which job.
        """
        return _found(job_id, self.database.run(views.job(id_of(job_id))))

    @must_await
    async def ajob(self, job_id: UUID | str) -> JobRecord:
        return _found(job_id, await self.async_database.run(views.job(id_of(job_id))))

    def worker(self, queues: Mapping[str, int] | None = None, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker to run inside this program: `async with app.worker({"mail": 50}): ...`.

        :param queues: The queues to serve, and how many jobs of each to run at once. Default: the queues of the registered
            tasks, 50 jobs of each.
        :param options: How it stops, what it keeps, how many connections it uses: see `WorkerOptions`.
        """
        from faultline.worker.worker import Worker  # noqa: PLC0415

        if processes.is_inside:
            raise ConfigError('a process of a task cannot run a worker; start it under `if __name__ == "__main__":`')
        if queues is not None and not isinstance(queues, Mapping):
            raise ConfigError(f'queues must be a dict of names and numbers, such as {{"mail": 50}}, not {queues!r:.80}')
        self.tasks.setdefault(COLLECT, built_in(self))
        served = queues or self.queues()
        return Worker(self, served, **options)

    def run_worker(self, queues: Mapping[str, int] | None = None, **options: Unpack[WorkerOptions]) -> None:
        """Run a worker in this process until SIGTERM or SIGINT.

        :param queues: As for `worker`.
        :param options: As for `worker`.
        """
        from faultline.worker.process import run_until_signalled  # noqa: PLC0415

        run_until_signalled(lambda: self.worker(queues, **options))

    def queues(self) -> dict[str, int]:
        """The queues of all registered tasks, each with the default concurrency."""
        own = [task for task in self.tasks.values() if task.name != COLLECT]
        return {task.queue: CONCURRENCY for task in own} or {"default": CONCURRENCY}

    def handle(self, job_id: UUID | str) -> JobHandle[Any]:
        """A handle for a job that was enqueued elsewhere.

        :param job_id: Which job. It is not looked up before the handle is used.
        """
        return JobHandle(self, id_of(job_id))

    @cached_property
    def dsn(self) -> str:
        """The database. An embedded server is started, or joined, when this is first read."""
        with self._opening:
            if callable(self._named):
                return LiveDsn(self._named)
            dsn = choose_dsn(self._named)
            if not embedded.is_embedded(dsn):
                return dsn
            if self._server is None:
                self._server = embedded.join(embedded.folder_of(dsn))
            return self._server.dsn

    @property
    def url(self) -> str:
        """The database as SQLAlchemy takes it: `create_engine(app.url)`, `create_async_engine(app.url)`."""
        return url_of(current(self.dsn))

    @cached_property
    def database(self) -> Database:
        made = Database(self.dsn, connections_max=self._connections_max, timeout=self._timeout, host=self.host)
        made.time, made.writes = self._time, True
        return self._shared("database", made)

    @cached_property
    def async_database(self) -> AsyncDatabase:
        made = AsyncDatabase(self.dsn, connections_max=self._connections_max, timeout=self._timeout, host=self.host)
        made.time, made.writes = self._time, True
        return self._shared("async_database", made)

    def _shared(self, name: str, made: R) -> R:
        """The first one made: since Python 3.12, threads may compute a cached property at the same time."""
        kept: R = self.__dict__.setdefault(name, made)
        return kept

    @cached_property
    def poller(self) -> Poller:
        return self._shared("poller", Poller(self.database))

    def close(self) -> None:
        """Close all connections, and stop an embedded server that nobody else uses. The application can be used again."""
        database = self.__dict__.pop("database", None)
        if database is not None:
            database.close()
        for name in ("dsn", "async_database", "poller"):
            self.__dict__.pop(name, None)
        server, self._server = self._server, None
        if server is not None:
            server.close()

    @must_await
    async def aclose(self) -> None:
        if "async_database" in self.__dict__:
            await self.async_database.close()
        self.close()

    def _after_fork(self) -> None:
        """A forked child must not use its parent's sockets: answers would get mixed up. It connects anew."""
        for name in ("database", "async_database", "poller"):
            inherited = self.__dict__.pop(name, None)
            if inherited is not None:
                # Kept, so that the child does not close the parent's sockets.
                _inherited.append(inherited)
        self._opening = threading.Lock()
        self._ids = Ids(self._time.seconds, self.host.chance)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_inherited: list[object] = []


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """The hook must not keep an unused application alive."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call


def _found(job_id: UUID | str, record: JobRecord | None) -> JobRecord:
    if record is None:
        raise JobNotFound(f"no job {job_id}: it was never committed in this database, or it was pruned")
    return record
