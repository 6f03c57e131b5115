"""Many callers at once on a database that nobody has used yet: one of them asks what it is like, the others wait."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import psycopg
import pytest

from faultline import ConfigError, DatabaseUnavailable, Faultline
from faultline.core.host import Host
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.deadline import BoundedConnection
from faultline.store.database import Database
from faultline.store.pool.idle import Idle
from faultline.store.pool.pools import AsyncPools
from faultline.store.reads import views
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import NewLogin
    from tests.driver import Driver

C = TypeVar("C", psycopg.AsyncConnection[Any], BoundedConnection)

_CALLERS = 12


class Door:
    """Opens connections, when it is let, and counts those that are open at once."""

    def __init__(self, failures: int = 0, *, stubborn: bool = False) -> None:
        self.opened = self.most = 0
        self.came = asyncio.Event()
        self.open = asyncio.Event()
        self._failures = failures
        self._stubborn = stubborn
        self._changed = threading.Lock()
        self._connections: list[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]] = []

    async def aconnect(self, dsn: str, **words: Any) -> psycopg.AsyncConnection:
        self._fail()
        self.came.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            if not self._stubborn:
                raise
            await self.open.wait()
        return self._counted(await psycopg.AsyncConnection.connect(dsn, **words))

    def connect(self, dsn: str, **words: Any) -> BoundedConnection:
        self._fail()
        return self._counted(BoundedConnection.connect(dsn, **words))

    def _fail(self) -> None:
        with self._changed:
            self._failures -= 1
            if self._failures >= 0:
                raise psycopg.OperationalError("the door is shut")

    def _counted(self, connection: C) -> C:
        with self._changed:
            self._connections.append(connection)
            self.opened += 1
            self.most = max(self.most, sum(not one.closed for one in self._connections))
        return connection


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns very often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def _waiting(door: Door, *tasks: asyncio.Task[Any]) -> None:
    """Until one of them asks, and the others have come as far as they can."""
    await door.came.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def test_first_calls_of_tasks_open_no_more_connections_than_they_may(dsn: str) -> None:
    async def first_calls() -> None:
        door = Door()
        database = AsyncDatabase(dsn, connections_max=2, timeout=PATIENCE, host=Host(aconnect=door.aconnect))
        calls = [asyncio.create_task(database.run(views.job(uuid4()))) for _ in range(_CALLERS)]
        await _waiting(door, *calls)
        door.open.set()
        assert await asyncio.gather(*calls) == [None] * _CALLERS
        await database.close()

        assert door.most <= 2
        assert door.opened <= 3

    asyncio.run(first_calls())


def test_first_calls_of_threads_open_no_more_connections_than_they_may(dsn: str) -> None:
    door, together = Door(), threading.Barrier(_CALLERS)
    database = Database(dsn, connections_max=2, timeout=PATIENCE, host=Host(connect=door.connect))

    def call(_: int) -> object:
        together.wait(PATIENCE)
        return database.run(views.job(uuid4()))

    with ThreadPoolExecutor(_CALLERS) as threads:
        assert list(threads.map(call, range(_CALLERS))) == [None] * _CALLERS
    database.close()

    assert door.most <= 2
    assert door.opened <= 3


def test_a_first_call_that_fails_or_is_cancelled_leaves_its_turn_to_the_next(dsn: str) -> None:
    async def story() -> None:
        door = Door(failures=1)
        database = AsyncDatabase(dsn, timeout=PATIENCE, host=Host(aconnect=door.aconnect))
        failed, cancelled, waiting, last = (asyncio.create_task(database.facts()) for _ in range(4))
        with pytest.raises(DatabaseUnavailable, match="the door is shut"):
            await failed
        await _waiting(door, cancelled, waiting, last)
        waiting.cancel()
        cancelled.cancel()
        await asyncio.wait([cancelled, waiting])
        door.open.set()

        assert (await last).args_bytes_max > 0
        assert door.opened == 1

    asyncio.run(story())


def test_one_that_waits_for_anothers_first_call_waits_no_longer_than_it_may(dsn: str) -> None:
    async def story() -> None:
        door = Door(stubborn=True)
        database = AsyncDatabase(dsn, timeout=0.2, host=Host(aconnect=door.aconnect))
        asks, waits = (asyncio.create_task(database.facts()) for _ in range(2))
        await _waiting(door, asks, waits)
        with pytest.raises(DatabaseUnavailable, match=r"not connected within 0\.2 s"):
            await asyncio.wait_for(waits, PATIENCE)
        assert not asks.done()
        door.open.set()
        await asyncio.wait([asks])

    asyncio.run(story())


def test_a_loop_whose_first_call_stands_still_holds_up_no_other_loop(dsn: str) -> None:
    database = AsyncDatabase(dsn, timeout=PATIENCE)
    door = Door()
    database.host = Host(aconnect=door.aconnect)
    loop = asyncio.new_event_loop()
    stands = loop.create_task(database.facts())
    loop.run_until_complete(door.came.wait())
    database.host = Host()

    assert asyncio.run(database.facts()).args_bytes_max > 0
    stands.cancel()
    loop.run_until_complete(asyncio.wait([stands]))
    loop.close()


@pytest.mark.usefixtures("hasty")
def test_threads_with_event_loops_of_their_own_share_a_database() -> None:
    class Pool:
        idle = Idle[Any](time.monotonic)

    pools: Any = AsyncPools(Pool)  # type: ignore[arg-type]

    async def call() -> None:
        assert pools.opened() is pools.existing()
        pools.take_out()
        pools.opened()  # and is left behind

    def calls(_: int) -> None:
        for _ in range(100):
            asyncio.run(call())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(calls, range(8)))


def test_threads_that_are_the_first_to_use_an_application_share_one_database(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2)

    class Slow(Database):
        def __init__(self, *values: Any, **words: Any) -> None:
            super().__init__(*values, **words)
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(1)

    monkeypatch.setattr("faultline.app.application.Database", Slow)
    app = Faultline(dsn)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: app.database, range(2))

    assert first is second
    assert first is app.database


NO_NUMBERS = [0, -1, math.nan, 1.5, True, "3", None]


@pytest.mark.parametrize("given", NO_NUMBERS)
@pytest.mark.parametrize("kind", [Faultline, Database, AsyncDatabase])
def test_a_number_of_connections_that_cannot_work_is_refused(kind: Any, given: Any) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"connections_max is {given!r}; it must be a whole number of at least 1")
    ):
        kind("postgresql://nowhere", connections_max=given)


@pytest.mark.parametrize("given", NO_NUMBERS)
def test_a_worker_with_a_number_that_cannot_work_is_refused(dsn: str, given: Any) -> None:
    with Faultline(dsn) as app:
        with pytest.raises(
            ConfigError, match=re.escape(f"concurrency of queue mail is {given!r}; it must be a whole number")
        ):
            app.worker({"default": 2, "mail": given})
        if given is not None:
            with pytest.raises(ConfigError, match=re.escape(f"job_connections_max is {given!r}; it must be a whole number")):
                app.worker({"default": 2}, job_connections_max=given)


@pytest.fixture
def crowded(queue: Driver, new_login: NewLogin) -> Crowded:
    return Crowded(queue.connection, new_login("in role faultline_viewer connection limit 0"))


class Crowded:
    """A server that has no connection left for a login, until it has refused it twice."""

    def __init__(self, owner: psycopg.Connection[Any], login: str) -> None:
        self.login = login
        self.refused = 0
        self._owner = owner

    async def aconnect(self, dsn: str, **words: Any) -> psycopg.AsyncConnection:
        with self._counted():
            return await psycopg.AsyncConnection.connect(dsn, **words)

    def connect(self, dsn: str, **words: Any) -> BoundedConnection:
        with self._counted():
            return BoundedConnection.connect(dsn, **words)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except psycopg.OperationalError:
            self.refused += 1
            if self.refused == 2:
                self._owner.execute(f"alter role {self.login} connection limit -1".encode())
            raise


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_first_call_waits_for_a_server_that_is_full(dsn: str, crowded: Crowded, kind: str) -> None:
    login = f"{dsn} user={crowded.login}"

    async def call() -> object:
        database = AsyncDatabase(login, timeout=PATIENCE, host=Host(aconnect=crowded.aconnect))
        found = await database.run(views.job(uuid4()))
        await database.close()
        return found

    if kind == "async":
        assert asyncio.run(call()) is None
    else:
        database = Database(login, timeout=PATIENCE, host=Host(connect=crowded.connect))
        assert database.run(views.job(uuid4())) is None
        database.close()
    assert crowded.refused == 2


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_first_call_waits_for_a_full_server_no_longer_than_it_may(dsn: str, crowded: Crowded, kind: str) -> None:
    login = f"{dsn} user={crowded.login}"

    with pytest.raises(DatabaseUnavailable, match=r"nothing was sent.*too many connections for role"):
        if kind == "async":
            asyncio.run(AsyncDatabase(login, timeout=3).run(views.job(uuid4())))
        else:
            Database(login, timeout=3).run(views.job(uuid4()))


def test_a_worker_on_a_full_server_is_told_at_once_so_that_it_can_tell_of_it(dsn: str, crowded: Crowded) -> None:
    database = Database(f"{dsn} user={crowded.login}", for_worker=True, host=Host(connect=crowded.connect))

    with pytest.raises(DatabaseUnavailable, match=r"cannot use .*too many connections"):
        database.facts()
    assert crowded.refused == 1
