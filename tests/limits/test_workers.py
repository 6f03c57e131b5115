"""Two real workers on queues with limits: what they promise together."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, Limit, Rate, Snooze
from tests.waiting import auntil, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.driver import Driver

PATIENCE = 60.0


class Running:
    """How many jobs run at once, of each key."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.began: list[tuple[float, str]] = []

    async def run(self, key: str, seconds: float) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        self.began.append((time.monotonic(), key))
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now[key] -= 1


def worked(
    app: Faultline, queues: dict[str, int], story: Callable[[], Awaitable[Any]], *, workers: int = 2, **words: Any
) -> Any:
    """Run so many workers for as long as the story takes."""

    async def main() -> Any:
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            for _ in range(workers):
                await stack.enter_async_context(app.worker(queues, **words))
            try:
                return await story()
            finally:
                await app.async_database.close()

    return asyncio.run(main())


async def all_done(app: Faultline, handles: list[Any]) -> None:
    await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles))


def test_two_workers_never_run_more_than_the_queue_may(app: Faultline) -> None:
    running = Running()
    app.queue("mail", concurrency=3)

    @app.task(queue="mail")
    async def send(n: int) -> None:
        await running.run("all", 0.005)

    handles = app.enqueue_many(send.bind(n) for n in range(60))
    app.declare()

    worked(app, {"mail": 10}, lambda: all_done(app, handles))

    assert running.most["all"] == 3


def test_two_workers_never_run_more_than_each_group_may(app: Faultline) -> None:
    running = Running()
    app.queue("mail", each_group=Limit(concurrency=2), groups={"tenant-0": Limit(concurrency=1)})

    @app.task(queue="mail", group="tenant-{tenant}")
    async def send(tenant: int) -> None:
        await running.run(str(tenant), 0.005)

    handles = app.enqueue_many(send.bind(n % 4) for n in range(80))

    worked(app, {"mail": 10}, lambda: all_done(app, handles))

    assert running.most == {"0": 1, "1": 2, "2": 2, "3": 2}


def test_a_limit_that_is_changed_holds_without_a_restart(app: Faultline) -> None:
    running = Running()
    app.queue("mail", concurrency=2)

    @app.task(queue="mail")
    async def send(n: int) -> None:
        await running.run("all", 0.01)

    async def story() -> list[int]:
        found = []
        for limit in (2, 5, 1):
            await app.limits.aset("mail", concurrency=limit, by="ann", reason="a test")
            await asyncio.sleep(0.1)  # what runs is not stopped
            running.most.clear()
            await all_done(app, await app.aenqueue_many(send.bind(n) for n in range(30)))
            found.append(running.most["all"])
        await app.limits.areset("mail", by="ann")
        running.most.clear()
        await all_done(app, await app.aenqueue_many(send.bind(n) for n in range(30)))
        return [*found, running.most["all"]]

    assert worked(app, {"mail": 10}, story) == [2, 5, 1, 2]


def test_a_raised_limit_lets_waiting_jobs_start_at_once(app: Faultline) -> None:
    running = Running()
    app.queue("mail", concurrency=1)
    release = asyncio.Event()

    @app.task(queue="mail")
    async def send(n: int) -> None:
        running.now["all"] += 1
        await release.wait()

    async def story() -> float:
        handles = await app.aenqueue_many(send.bind(n) for n in range(5))
        while running.now["all"] < 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert running.now["all"] == 1
        await app.limits.aset("mail", concurrency=None)
        began = time.monotonic()
        while running.now["all"] < 5:
            await asyncio.sleep(0.01)
        release.set()
        await all_done(app, handles)
        return time.monotonic() - began

    assert worked(app, {"mail": 10}, story) < 3.0


def test_a_queue_that_gets_its_first_limit_while_workers_run_keeps_it(app: Faultline) -> None:
    running = Running()

    @app.task(queue="mail")
    async def send(n: int) -> None:
        await running.run("all", 0.005)

    async def story() -> int:
        await all_done(app, await app.aenqueue_many(send.bind(n) for n in range(50)))
        await app.limits.aset("mail", concurrency=2)
        running.most.clear()
        await all_done(app, await app.aenqueue_many(send.bind(n) for n in range(50)))
        return running.most["all"]

    assert worked(app, {"mail": 10}, story) == 2


def claimed(handles: list[Any]) -> list[float]:
    """When the jobs were claimed, by the database's clock: how busy the machine is makes no difference."""
    return sorted(handle.job().claimed_at.timestamp() for handle in handles)


def test_two_workers_keep_a_rate_together(app: Faultline) -> None:
    """In no time more than the burst and what the time allows, and nearly that much."""
    app.queue("mail", rate=Rate(50, burst=5))

    @app.task(queue="mail")
    async def send(n: int) -> None: ...

    handles = app.enqueue_many(send.bind(n) for n in range(80))

    worked(app, {"mail": 10}, lambda: all_done(app, handles))

    at = claimed(handles)
    for first, last in itertools.combinations(range(80), 2):
        assert last - first + 1 <= 5 + 50 * (at[last] - at[first]) + 1e-3
    assert at[-1] - at[0] < 4 * 80 / 50


def test_a_rate_of_one_in_a_while_needs_no_notice(app: Faultline) -> None:
    app.queue("mail", rate=Rate(1, per=0.4, burst=1))

    @app.task(queue="mail")
    async def send(n: int) -> None: ...

    handles = app.enqueue_many(send.bind(n) for n in range(4))

    worked(app, {"mail": 10}, lambda: all_done(app, handles))

    at = claimed(handles)
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert min(gaps) > 0.399
    assert sum(gaps) < 4.0


def test_one_tenant_with_twenty_thousand_jobs_keeps_no_other_waiting(app: Faultline) -> None:
    running = Running()
    app.queue("mail", concurrency=20, each_group=Limit())

    @app.task(queue="mail", group="tenant-{tenant}")
    async def send(tenant: str) -> None:
        await running.run(tenant, 0.002)

    app.declare()
    app.enqueue_many(send.bind("big") for _ in range(20_000))

    async def story() -> float:
        while running.now["big"] == 0:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await all_done(app, await app.aenqueue_many(send.bind("small") for _ in range(20)))
        return time.monotonic() - began

    took = worked(app, {"mail": 20}, story, grace_seconds=1)

    before = [key for _, key in running.began]
    last = max(n for n, key in enumerate(before) if key == "small")
    first = min(n for n, key in enumerate(before) if key == "small")
    assert took < 20
    assert last - first < 1000


def test_an_ordered_group_waits_for_the_retries_of_its_head(app: Faultline) -> None:
    order: list[tuple[str, int, int]] = []
    app.queue("ledger", each_group=Limit(ordered=True))

    @app.task(queue="ledger", group="account-{account}", max_attempts=4, backoff=lambda _: 0.05)
    async def post(account: str, n: int) -> None:
        tries = sum(1 for one in order if one[:2] == (account, n))
        order.append((account, n, tries))
        await asyncio.sleep(0.002)
        if n % 3 == 0 and tries < 2:
            raise RuntimeError("again")

    handles = app.enqueue_many(post.bind(account, n) for n in range(9) for account in ("a", "b"))

    worked(app, {"ledger": 10}, lambda: all_done(app, handles))

    for account in ("a", "b"):
        found = [n for key, n, _ in order if key == account]
        assert found == sorted(found)
        assert found.count(3) == 3


def test_a_snoozed_job_of_a_group_gives_its_permit_up(app: Faultline) -> None:
    began: list[int] = []
    app.queue("mail", each_group=Limit(concurrency=1))

    @app.task(queue="mail", group="one")
    async def send(n: int) -> Snooze | None:
        began.append(n)
        return Snooze(0.5) if n == 0 and began.count(0) == 1 else None

    handles = app.enqueue_many(send.bind(n) for n in range(3))

    worked(app, {"mail": 5}, lambda: all_done(app, handles))

    assert began == [0, 1, 2, 0]


@pytest.mark.parametrize("queues", [1, 5])
def test_jobs_of_groups_and_without_get_their_share(app: Faultline, queues: int) -> None:
    done: Counter[str] = Counter()
    app.queue("mail", concurrency=4, each_group=Limit())

    @app.task(queue="mail")
    async def send(kind: str) -> None:
        done[kind] += 1
        await asyncio.sleep(0.001)

    app.declare()
    app.enqueue_many(send.bind("plain") for _ in range(2000))
    app.enqueue_many(send.options(group=f"g{n % 50}").bind("grouped") for n in range(4000))

    async def story() -> None:
        while done.total() < 600:
            await asyncio.sleep(0.01)

    served = {"mail": 10, **{f"other-{n}": 5 for n in range(queues - 1)}}
    worked(app, served, story, grace_seconds=1)

    assert min(done["plain"], done["grouped"]) > 150


def test_a_worker_wakes_nobody_for_a_permit_that_it_claims_itself_until_it_stops(app: Faultline, dsn: str) -> None:
    app.queue("mail", concurrency=1)
    at_last, release = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def send(n: int) -> None:
        if n == 3:
            at_last.set()
            await release.wait()

    app.declare()
    app.enqueue_many(send.bind(n) for n in range(6))

    async def story(listener: psycopg.Connection) -> tuple[list[str], list[str]]:
        async with asyncio.timeout(PATIENCE), app.worker({"mail": 5}) as worker:
            await at_last.wait()
            listener.execute(SLEEPS)
            working = woken(listener)
            asyncio.get_running_loop().call_later(0.3, release.set)
            worker.stop()
        await app.async_database.close()
        return working, woken(listener)

    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute(SLEEPS)
        listener.execute("listen faultline")
        working, stopping = asyncio.run(story(listener))

    assert working == []
    assert len(stopping) == 1


@pytest.mark.parametrize("slots", [1, 5])
def test_a_worker_that_could_use_all_permits_leaves_some_to_another(app: Faultline, queue: Driver, slots: int) -> None:
    """Whoever gives a permit back claims it again at once. Now and then, another one that waits comes first."""
    app.queue("mail", concurrency=1)

    @app.task(queue="mail")
    async def send() -> None:
        await asyncio.sleep(0.05)

    handles = app.enqueue_many(send.bind() for _ in range(100))
    worked(app, {"mail": slots}, lambda: all_done(app, handles))

    rows = queue.execute("select split_part(owner, '/', 1) from faultline.ledger order by finished_at, claimed_at")
    owners = [owner for (owner,) in rows]
    assert sum(one != after for one, after in itertools.pairwise(owners)) >= 3, Counter(owners)


SLEEPS = "select faultline.heartbeat('sleeper', 'elsewhere', 1, '1', array['mail'], array['mail'])"


def woken(listener: psycopg.Connection) -> list[str]:
    return [notice.payload for notice in listener.notifies(timeout=0.5) if "sleeper" in notice.payload]


def test_the_order_is_that_of_enqueues_and_of_commits_if_they_go_one_after_another(app: Faultline, dsn: str) -> None:
    ran: list[str] = []
    queue = app.queue("ledger", each_group=Limit(ordered=True))

    @app.task(queue=queue, group="account-{account}")
    async def book(account: int, what: str) -> None:
        ran.append(what)

    app.declare()
    with psycopg.connect(dsn) as early, psycopg.connect(dsn) as late, psycopg.connect(dsn) as last:
        book.using(early).enqueue(1, "enqueued first")
        book.using(late).enqueue(1, "enqueued second, committed first")
        late.commit()
        early.commit()

        # As the how-to has it: who has the lock of the account enqueues and commits before the next one enqueues.
        late.execute("select pg_advisory_xact_lock(1)")
        with ThreadPoolExecutor(1) as beside:

            def behind() -> None:
                last.execute("select pg_advisory_xact_lock(1)")
                book.using(last).enqueue(1, "committed last")
                last.commit()

            waiting = beside.submit(behind)
            until(lambda: early.execute("select 1 from pg_locks where locktype = 'advisory' and not granted").fetchone())
            book.using(late).enqueue(1, "committed before")
            late.commit()
            waiting.result(PATIENCE)

    async def story() -> None:
        await auntil(lambda: len(ran) == 4)

    worked(app, {"ledger": 5}, story)
    assert ran == ["enqueued first", "enqueued second, committed first", "committed before", "committed last"]
