"""Every worker wakes those who wait: after its own endings, after a hint, by the clock, and in spite of errors."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job, JobState
from faultline.store.async_database import AsyncDatabase
from faultline.worker.base.counters import Tally
from faultline.worker.upkeep.resolver import Resolver
from tests.waiting import auntil
from tests.worker.working import logged, work

if TYPE_CHECKING:
    import io
    from collections.abc import Awaitable, Callable

    from tests.driver import Driver


def resolving(dsn: str, story: Callable[[Resolver], Awaitable[Any]]) -> Any:
    """A resolver by itself, on a database of its own."""

    async def main() -> Any:
        database = AsyncDatabase(dsn)
        resolver = Resolver(database, random.Random(1), Tally(time.monotonic, ["default"]))
        running = asyncio.create_task(resolver.run())
        try:
            async with asyncio.timeout(60):
                return await story(resolver)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await database.close()

    return asyncio.run(main())


def looks(queue: Driver) -> int:
    """How often the database was asked to resolve."""
    return int(queue.value("select last_value from public.looks"))


def count_looks(queue: Driver) -> None:
    """Every look reads the run of the server once."""
    queue.execute("create sequence public.looks; grant usage on sequence public.looks to public")
    body = queue.value("select pg_get_functiondef('faultline.read_committed'::regproc)")
    queue.execute(body.replace("begin\n", "begin\n  perform nextval('public.looks');\n", 1))


def test_it_looks_by_the_clock_and_at_once_when_it_is_asked(dsn: str, queue: Driver) -> None:
    count_looks(queue)

    async def story(resolver: Resolver) -> float:
        await auntil(lambda: looks(queue) >= 4)
        before = looks(queue)
        asked = time.monotonic()
        resolver.ask()
        await auntil(lambda: looks(queue) > before)
        return time.monotonic() - asked

    assert resolving(dsn, story) < 30


def test_any_number_of_useless_hints_makes_it_look_a_few_times_a_second(dsn: str, queue: Driver) -> None:
    count_looks(queue)

    async def story(resolver: Resolver) -> int:
        before, until = looks(queue), time.monotonic() + 2
        while time.monotonic() < until:
            resolver.hint()
            await asyncio.sleep(0.001)
        return looks(queue) - before

    # Each time it resolves and sweeps. 20 times at once, 40 times a second, and by the clock.
    assert resolving(dsn, story) <= 2 * (20 + 2 * 40 + 10)


def test_an_error_of_the_database_does_not_end_it(dsn: str, queue: Driver, log: io.StringIO) -> None:
    body = queue.value("select pg_get_functiondef('faultline.read_committed'::regproc)")
    queue.execute(body.replace("begin\n", "begin\n  raise exception 'broken';\n", 1))

    async def story(resolver: Resolver) -> None:
        resolver.ask()
        await auntil(lambda: logged(log, "resolve_failed"))
        queue.execute(body)
        count_looks(queue)
        await auntil(lambda: looks(queue) > 1)

    resolving(dsn, story)


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_the_children_of_a_job_that_ends_badly_are_cancelled(dsn: str, queue: Driver, how: str) -> None:
    with Faultline(dsn) as app:

        @app.task(max_attempts=1)
        async def child() -> None:
            await asyncio.Event().wait()

        @app.task(max_attempts=1)
        async def parent(job: Job) -> None:
            children = [job.call(child) for _ in range(3)]
            await job.gather(*children, job.branch(_fails) if how == "fails" else job.sleep(3600))

        async def _fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("mine")

        handle = parent.enqueue()
        running = "select count(*) from faultline.open_jobs where state = 'running' and task like '%%child'"

        async def story() -> None:
            if how != "fails":
                await auntil(lambda: queue.value(running) == 3)
                await asyncio.to_thread(app.cancel, handle.id)
            cancelled = "select count(*) from faultline.open_jobs where state = 'cancelled' and task like '%%child'"
            await auntil(lambda: queue.value(cancelled) == 3)

        work(app, story)
        assert queue.state(handle.id) in (JobState.FAILED, JobState.CANCELLED)
    assert queue.broken_invariants() == []
