"""Jobs that may not start yet: a busy row is asked for again; what may not run beside others is left to other workers."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import psycopg

from faultline import Faultline
from faultline.core.faults import Faults
from faultline.core.host import Host
from tests.worker.working import PATIENCE, work

if TYPE_CHECKING:
    from tests.driver import Driver


class RowLocked(Faults):
    """Locks all rows for a while just before the first mark is sent."""

    wanted = True

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.marks = 0

    def reach(self, point: str) -> None:
        if point == "before_record_start_sent":
            self.marks += 1
            if self.marks == 1:
                connection = psycopg.connect(self._dsn)
                connection.execute("select from faultline.open_jobs for update")
                threading.Timer(0.3, connection.close).start()


def test_a_row_that_is_locked_for_a_moment_strands_no_job(dsn: str, queue: Driver) -> None:
    faults = RowLocked(dsn)
    with Faultline(dsn, host=Host(faults=faults)) as app:

        @app.task(max_attempts=1)
        async def once() -> str:
            return "done"

        handle = once.enqueue()
        assert work(app, lambda: handle.aresult(timeout=PATIENCE)) == "done"

    assert faults.marks > 1
    assert queue.journal(handle.id) == []


def test_jobs_that_a_suspect_keeps_from_starting_run_on_another_worker(app: Faultline, queue: Driver) -> None:
    go_on = asyncio.Event()

    @app.task(max_attempts=1)
    async def long() -> None:
        await go_on.wait()

    @app.task(max_attempts=1)
    async def short() -> None: ...

    async def story() -> list[str]:
        async with asyncio.timeout(PATIENCE), app.worker({"default": 10}):
            first = long.enqueue()
            while (await first.ajob()).state != "running":
                await asyncio.sleep(0.01)
            suspect = short.options(delay=2).enqueue()
            queue.connection.execute("update faultline.open_jobs set reaps = 3 where id = %s", (suspect.id,))
            while (await suspect.ajob()).state != "running":
                await asyncio.sleep(0.01)
            others = [short.enqueue() for _ in range(8)]
            while queue.value("select count(*) from faultline.open_jobs where state = 'running'") < 3:
                await asyncio.sleep(0.01)
            async with app.worker({"default": 10}):
                for other in others:
                    await other.aresult(timeout=PATIENCE)
                states = [str((await handle.ajob()).state) for handle in (first, *others)]
                go_on.set()
                await suspect.aresult(timeout=PATIENCE)
                await first.aresult(timeout=PATIENCE)
                await app.async_database.close()
        return states

    assert asyncio.run(story()) == ["running"] + ["succeeded"] * 8
    assert queue.value("select count(*) from faultline.journal") == 0


def test_plain_jobs_run_beside_a_suspect_although_others_that_may_not_stand_before_them(
    app: Faultline, queue: Driver
) -> None:
    go_on = asyncio.Event()

    @app.task(max_attempts=5)
    async def long() -> None:
        await go_on.wait()

    @app.task(max_attempts=1)
    async def last() -> None: ...

    @app.task(max_attempts=5)
    async def plain() -> None: ...

    suspect = long.enqueue()
    queue.connection.execute("update faultline.open_jobs set reaps = 3 where id = %s", (suspect.id,))

    async def story() -> list[str]:
        async with asyncio.timeout(PATIENCE), app.worker({"default": 4}):
            while (await suspect.ajob()).state != "running":
                await asyncio.sleep(0.01)
            others = [last.enqueue() for _ in range(6)]
            await plain.enqueue().aresult(timeout=PATIENCE)
            started = [str((await other.ajob()).state) for other in others if (await other.ajob()).state == "succeeded"]
            go_on.set()
            for handle in (suspect, *others):
                await handle.aresult(timeout=PATIENCE)
            await app.async_database.close()
        return started

    assert asyncio.run(story()) == []
