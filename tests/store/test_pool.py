"""What is lent to others comes back as new; nobody waits for itself; what is not needed is closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection.deadline import Deadline
from faultline.store.database import Database
from faultline.store.pool.fair_semaphore import Room
from faultline.store.pool.idle import IDLE_SECONDS, Idle
from faultline.store.pool.loans import Loan, Terms
from faultline.store.pool.pool import Pool
from faultline.store.reads import views
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver

#: What user code does to a session, and how its trace would be seen.
CHANGES = [
    ("set role faultline_viewer", "select current_user = session_user"),
    ("set session authorization faultline_viewer", "select session_user::text <> 'faultline_viewer'"),
    ("set statement_timeout = '1s'", "select current_setting('statement_timeout') = '0'"),
    ("set lock_timeout = '1ms'", "select current_setting('lock_timeout') = '10s'"),
    (
        "set idle_in_transaction_session_timeout = 0",
        "select current_setting('idle_in_transaction_session_timeout') = '1min'",
    ),
    ("set default_transaction_read_only = on", "select current_setting('transaction_read_only') = 'off'"),
    (
        "set default_transaction_isolation = 'serializable'",
        "select current_setting('transaction_isolation') = 'read committed'",
    ),
    ("set search_path = pg_temp", "select current_setting('search_path') <> 'pg_temp'"),
    ("set my.setting = 'x'", "select coalesce(current_setting('my.setting', true), '') = ''"),
    ("create temporary table jobs (n int)", "select to_regclass('pg_temp.jobs') is null"),
    (
        "select pg_advisory_lock(42)",
        (
            "select not exists (select from pg_locks l join pg_database d on d.oid = l.database"
            " where datname = current_database() and locktype = 'advisory' and objid = 42)"
        ),
    ),
    ("listen everything", "select not exists (select pg_listening_channels())"),
    ("prepare mine as select 1", "select not exists (select from pg_prepared_statements where name = 'mine')"),
    ("declare mine cursor with hold for select 1", "select not exists (select from pg_cursors)"),
]


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    with contextlib.closing(Database(dsn, connections_max=1, for_worker=True)) as opened:
        yield opened


def pid_of(database: Database) -> Any:
    with database.connection() as connection:
        return connection.info.backend_pid


@pytest.mark.parametrize(("change", "unchanged"), CHANGES)
def test_a_session_comes_back_as_new(database: Database, change: str, unchanged: str) -> None:
    with database.connection() as connection:
        connection.execute(change.encode())
        assert connection.execute(unchanged.encode()).fetchone() == (False,)
        pid = connection.info.backend_pid

    with database.connection() as connection:
        assert connection.execute(unchanged.encode()).fetchone() == (True,)
        assert connection.info.backend_pid == pid  # cleaned, not thrown away


@pytest.mark.parametrize(("change", "unchanged"), CHANGES)
def test_an_async_session_comes_back_as_new(dsn: str, change: str, unchanged: str) -> None:
    async def both() -> None:
        database = AsyncDatabase(dsn, connections_max=1, for_worker=True)
        async with database.connection() as connection:
            await connection.execute(change.encode())
        async with database.connection() as connection:
            assert await (await connection.execute(unchanged.encode())).fetchone() == (True,)
        await database.close()

    asyncio.run(both())


def test_a_session_that_was_lent_before_is_kept_from_forks_as_well(database: Database) -> None:
    pid = pid_of(database)
    with database.connection() as connection:
        wire = connection.pgconn.socket
        socket_of_ours, child = os.fstat(wire).st_ino, os.fork()
        if child == 0:
            os._exit(os.fstat(wire).st_ino == socket_of_ours)

        assert (connection.info.backend_pid, os.waitpid(child, 0)[1]) == (pid, 0)


def test_what_was_done_to_psycopgs_object_goes_with_it(database: Database) -> None:
    with database.connection() as connection:
        connection.row_factory = dict_row  # type: ignore[assignment]
        connection.cursor_factory = psycopg.ClientCursor
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.read_only = True
        connection.autocommit = False
        connection.adapters.register_loader("int4", psycopg.types.string.TextLoader)
        connection.prepare_threshold = 0
        kept = connection

    with database.connection() as connection:
        assert connection.execute("select 1::int4, current_setting('transaction_read_only')").fetchone() == (1, "off")
        assert connection.autocommit
        assert kept.closed
        with pytest.raises(psycopg.OperationalError, match="closed"):
            kept.execute("select 1")


def test_a_session_that_cannot_be_cleaned_is_closed(database: Database, dsn: str) -> None:
    with database.connection() as connection:
        pid = connection.info.backend_pid
        with psycopg.connect(dsn, autocommit=True) as killer:
            killer.execute("select pg_terminate_backend(%s, 5000)", (pid,))

    assert pid_of(database) != pid


def test_a_transaction_that_was_left_open_is_thrown_away_with_its_session(database: Database) -> None:
    with database.connection() as connection:
        connection.execute("begin")
        pid = connection.info.backend_pid

    assert pid_of(database) != pid


def test_what_we_prepared_ourselves_is_prepared_again_after_a_loan(database: Database) -> None:
    for _ in range(6):
        database.run(views.job(uuid4()))
    pid_of(database)
    for _ in range(6):
        database.run(views.job(uuid4()))


def test_a_statement_of_one_who_has_borrowed_the_last_connection_does_not_wait_for_itself(dsn: str) -> None:
    async def nested() -> None:
        database = AsyncDatabase(dsn, terms=Terms(Room(1), room_seconds=None))
        async with asyncio.timeout(20), database.connection():
            assert await database.run(views.job(uuid4())) is None
        await database.close()

    asyncio.run(nested())
    with contextlib.closing(Database(dsn, terms=Terms(Room(1), room_seconds=5.0))) as database, database.connection():
        assert database.run(views.job(uuid4())) is None


def test_what_is_not_needed_is_closed_after_a_while(dsn: str) -> None:
    count = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"

    async def busy_then_idle() -> None:
        now = 0.0
        database = AsyncDatabase(dsn, terms=Terms(Room(5)))
        database.host = type(database.host)(monotonic=lambda: now)
        await asyncio.gather(*(database.run(views.job(uuid4())) for _ in range(20)))
        with psycopg.connect(dsn, autocommit=True) as watcher:
            before = watcher.execute(count).fetchone()
            now += IDLE_SECONDS + 1
            await database.shrink()
            async with asyncio.timeout(20):
                while watcher.execute(count).fetchone() != (0,):
                    await asyncio.sleep(0.01)
        await database.close()

        assert before is not None
        assert before[0] > 1

    asyncio.run(busy_then_idle())


def test_a_connection_that_comes_back_while_the_pool_is_closed_is_closed_too(dsn: str) -> None:
    class ClosedMeanwhile(Idle[psycopg.Connection]):
        def put(self, connection: psycopg.Connection) -> None:
            pool.close()
            super().put(connection)

    pool = Pool(lambda _: psycopg.connect(dsn), lambda connection: connection, Terms(Room(1)))
    pool.idle = ClosedMeanwhile(time.monotonic)
    with pool.connection(Deadline(PATIENCE, time.monotonic)) as connection:
        pass

    assert connection.closed
    assert pool.idle.take() is None


# The room


def test_threads_and_tasks_wait_in_one_line() -> None:
    room, order = Room(1), []

    async def both() -> None:
        assert room.enter(0)
        waited = asyncio.create_task(room.aenter(None))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: order.append(("thread", room.enter(20))))
        thread.start()
        while len(room._waiting) < 2:  # noqa: SLF001 - nothing else tells that it waits
            await asyncio.sleep(0.001)

        room.leave()
        order.append(("task", await waited))
        room.leave()
        await asyncio.to_thread(thread.join)

    asyncio.run(both())

    assert order == [("task", True), ("thread", True)]


def test_one_that_gave_up_waiting_leaves_its_place_to_the_next() -> None:
    room = Room(1)

    async def cancelled() -> None:
        assert room.enter(0)
        waiting = asyncio.create_task(room.aenter(None))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not await room.aenter(0.01)
        room.leave()
        assert await room.aenter(0.01)

    asyncio.run(cancelled())


def test_a_loan_that_was_called_in_gives_its_place_back_once(dsn: str) -> None:
    room, loan = Room(1), Loan()
    with contextlib.closing(Database(dsn, terms=Terms(room, room_seconds=0.0))) as database:
        with contextlib.suppress(psycopg.OperationalError), database.connection(loan) as connection:
            loan.call_in(connection)
            loan.call_in(connection)
            assert room.enter(0)
            assert not room.enter(0)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        assert not room.enter(0)
        room.leave()
        pid_of(database)
        assert room.enter(0)
        assert not room.enter(0)


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_who_waits_long_for_a_place_is_told_of_once_a_minute(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faultline.store.pool.fair_semaphore.LONG_SECONDS", 0.01)
    now, told = 0.0, threading.Event()
    told_of: list[tuple[int, int]] = []

    def tell(size: int, waiting: int) -> None:
        told_of.append((size, waiting))
        told.set()

    room = Room(1, tell, monotonic=lambda: now)
    assert room.enter(0)

    def wait() -> None:
        assert asyncio.run(room.aenter(PATIENCE)) if kind == "async" else room.enter(PATIENCE)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert told.wait(PATIENCE)
    told.clear()
    while len(room._waiting) < 2:  # noqa: SLF001 - nothing else tells that it waits
        pass
    assert not told.wait(0.2)
    now = 60.0
    assert told.wait(PATIENCE)
    for _ in range(2):
        room.leave()
    for thread in threads:
        thread.join(PATIENCE)

    assert len(told_of) == 2
    assert told_of[-1] == (1, 2)


class Conflict(Faults):
    """The server undoes the first statement that is sent, for a deadlock."""

    wanted, met = True, False

    def reach(self, point: str) -> None:
        if point == "before_job_sent" and not self.met:
            self.met = True
            raise psycopg.errors.DeadlockDetected("deadlock detected")


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_conflict_costs_no_connection(dsn: str, repeatable: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """On a server that is full, another one could not be had. What the server undid is sent again, whatever it is."""
    with contextlib.closing(Database(dsn, host=Host(faults=Conflict()))) as database:
        database.run(views.counts())
        with database.connection() as connection:
            before = connection.info.backend_pid
        database.run(replace(views.job(uuid4()), repeatable=repeatable))
        with database.connection() as connection:
            assert connection.info.backend_pid == before
        assert database.reconnects == 0


def borrowed(database: Database, number: int) -> list[int]:
    """The sessions of so many connections, which were lent at the same time."""
    all_lent = threading.Barrier(number)

    def borrow(_: int) -> int:
        with database.connection() as connection:
            all_lent.wait(PATIENCE)
            return connection.info.backend_pid

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(borrow, range(number)))


@pytest.mark.parametrize("lost", ["one", "all"])
def test_connections_that_live_outlive_the_loss_of_another(dsn: str, queue: Driver, lost: str) -> None:
    """On a server that is full, no others could be had."""
    with contextlib.closing(Database(dsn)) as database:
        pids = set(borrowed(database, 3))
        ended = {*borrowed(database, 1)} if lost == "one" else pids  # the one that is used next
        queue.connection.execute("select pg_terminate_backend(pid, 10000) from unnest(%s::int[]) pid", (list(ended),))
        database.run(views.counts())
        found = set(borrowed(database, 2))

    assert found == pids - ended if lost == "one" else not found & pids
