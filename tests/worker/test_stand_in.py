"""A worker whose heartbeat has lost its connection and is refused another one is heard over the connections it has left."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from faultline import Faultline
from tests.waiting import auntil
from tests.worker.working import PATIENCE

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from tests.conftest import NewLogin
    from tests.driver import Driver


@pytest.fixture
def login(new_login: NewLogin) -> str:
    """A login that can be refused new connections, unlike a superuser."""
    return new_login("in role faultline_worker, faultline_producer")


def refuse(queue: Driver, login: str, *, refused: bool = True) -> None:
    queue.connection.execute(f"alter role {login} connection limit {0 if refused else -1}".encode())


def lose_heartbeat(queue: Driver, worker: str) -> None:
    lock = "(l.classid::bigint << 32 | l.objid::bigint) = faultline.worker_lock(%s)"
    ended = queue.connection.execute(
        f"select pg_terminate_backend(l.pid, 10000) from pg_locks l where l.locktype = 'advisory' and {lock}".encode(),
        (worker,),
    ).fetchall()
    assert ended == [(True,)]


def watched(queue: Driver, worker: str) -> bool | None:
    row = queue.connection.execute("select watched from faultline.workers where id = %s", (worker,)).fetchone()
    return None if row is None else bool(row[0])


def expires_at(queue: Driver, job_id: UUID) -> datetime:
    found = queue.job(job_id)
    assert (found.state, found.fencing_token) == ("running", 1)
    assert found.lease_expires_at is not None
    return found.lease_expires_at


@pytest.mark.long
def test_a_worker_that_is_refused_a_connection_keeps_its_jobs(dsn: str, queue: Driver, login: str) -> None:
    app, other = Faultline(make_conninfo(dsn, user=login)), Faultline(dsn)

    async def story() -> str:
        over = asyncio.Event()

        @app.task(max_attempts=1, lease=9)
        async def patient() -> str:
            await over.wait()
            return "done"

        handle = await patient.aenqueue()
        async with asyncio.timeout(PATIENCE), other.worker({"other": 1}), app.worker({"default": 1}) as worker:
            await auntil(lambda: queue.job(handle.id).state == "running" and watched(queue, worker.id))
            await asyncio.sleep(3.5)  # from now on the other worker may judge
            refuse(queue, login)
            lose_heartbeat(queue, worker.id)
            # Long enough to be called dead, and for the lease to run out.
            for _ in range(48):
                await asyncio.sleep(0.25)
                assert queue.job(handle.id).state == "running"
            assert watched(queue, worker.id) is False

            refuse(queue, login, refused=False)
            await auntil(lambda: watched(queue, worker.id))
            over.set()
            result = await handle.aresult(PATIENCE)
        await app.async_database.close()
        return result

    assert asyncio.run(story()) == "done"
    app.close()
    lost = queue.connection.execute("select event from faultline.journal where event ~ 'lost|reaped'").fetchall()
    assert lost == []


def test_a_worker_that_stops_while_it_is_refused_leaves_no_sign_of_life(dsn: str, queue: Driver, login: str) -> None:
    app = Faultline(make_conninfo(dsn, user=login))

    async def story() -> str:
        async with asyncio.timeout(PATIENCE), app.worker({"default": 1}) as worker:
            await auntil(lambda: watched(queue, worker.id))
            refuse(queue, login)
            lose_heartbeat(queue, worker.id)
            await auntil(lambda: watched(queue, worker.id) is False)
        return worker.id

    assert watched(queue, asyncio.run(story())) is None


@pytest.mark.long
def test_a_beat_that_waits_for_a_locked_table_costs_no_lease_while_the_heartbeat_is_refused(
    dsn: str, queue: Driver, login: str
) -> None:
    app = Faultline(make_conninfo(dsn, user=login))

    async def story() -> str:
        over = asyncio.Event()

        @app.task(max_attempts=1, lease=6)
        async def patient() -> str:
            await over.wait()
            return "done"

        handle = await patient.aenqueue()
        async with asyncio.timeout(2 * PATIENCE), app.worker({"default": 2}) as worker:
            await auntil(lambda: queue.job(handle.id).state == "running" and watched(queue, worker.id))
            with psycopg.connect(dsn) as other:
                refuse(queue, login)
                lose_heartbeat(queue, worker.id)
                other.execute("lock table faultline.workers in exclusive mode")
                # Until it would have run out twice.
                enough = expires_at(queue, handle.id) + timedelta(seconds=12)
                await auntil(lambda: expires_at(queue, handle.id) > enough)
            refuse(queue, login, refused=False)
            over.set()
            result = await handle.aresult(PATIENCE)
        await app.async_database.close()
        return result

    assert asyncio.run(story()) == "done"
    app.close()
