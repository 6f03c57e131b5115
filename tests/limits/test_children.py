"""Groups of jobs that other jobs and topics make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline import BlockingJob, Job, Limit
from faultline.testing import drain
from tests.limits.test_workers import all_done, worked
from tests.waiting import auntil

if TYPE_CHECKING:
    from psycopg import Connection

    from faultline import Faultline
    from tests.driver import Driver


def groups(app: Faultline, task: str) -> list[str | None]:
    connection: Connection[tuple[str | None]]
    with app.database.connect() as connection:
        found = connection.execute("select group_key from faultline.jobs where task = %s order by created_at, id", (task,))
        return [key for (key,) in found.fetchall()]


def test_children_have_their_own_group_or_that_of_their_parent(app: Faultline) -> None:
    app.queue("mail", concurrency=5, each_group=Limit(concurrency=1))

    @app.task(queue="mail", group="tenant-{tenant}")
    async def own(tenant: int) -> int:
        return tenant

    @app.task(queue="mail")
    async def child(n: int) -> int:
        return n

    @app.task(queue="mail", group="parent-{n}")
    async def parent(job: Job, n: int) -> int:
        mapped = await job.map(own, [1, 2])
        return sum(mapped) + await job.call(child, 3) + await job.call(child.options(group="given"), 4)

    app.declare()
    handle = parent.enqueue(7)

    drain(app)

    assert handle.result(5) == 10
    assert sorted(map(str, groups(app, "own"))) == ["tenant-1", "tenant-2"]
    assert sorted(map(str, groups(app, "child"))) == ["given", "parent-7"]


def test_a_map_gives_its_children_the_group_that_its_task_is_given(app: Faultline) -> None:
    app.queue("mail", each_group=Limit(concurrency=1))

    @app.task(queue="mail", group="tenant-{n}")
    async def child(n: int) -> int:
        return n

    @app.task(queue="mail")
    async def parent(job: Job) -> list[int]:
        return await job.map(child.options(group="together"), [1, 2])

    @app.task(queue="mail")
    def blocking_parent(job: BlockingJob) -> list[int]:
        return job.map(child.options(group="together"), [3, 4])

    app.declare()
    handles = [parent.enqueue(), blocking_parent.enqueue()]

    drain(app)

    assert [handle.result(5) for handle in handles] == [[1, 2], [3, 4]]
    assert groups(app, "child") == ["together"] * 4


def test_a_task_reads_its_own_group(app: Faultline) -> None:
    app.queue("mail", each_group=Limit(concurrency=1))

    @app.task(group="tenant-{n}")
    async def grouped(job: Job, n: int) -> str | None:
        return job.group

    @app.task
    def blocking(job: BlockingJob, n: int) -> str | None:
        return job.group

    app.declare()
    jobs = [grouped.options(queue=queue).bind(7) for queue in ("mail", "default")]
    jobs += [blocking.bind(1), blocking.options(group="given").bind(2)]
    handles = app.enqueue_many(jobs)

    drain(app)

    assert [handle.result(5) for handle in handles] == ["tenant-7", "tenant-7", None, "given"]


def test_a_topic_fills_the_group_from_what_is_published(app: Faultline) -> None:
    @app.on("order.paid")
    @app.task(queue="mail", group="tenant-{tenant}")
    async def thank(tenant: int) -> None: ...

    app.declare()

    app.publish("order.paid", {"tenant": 7, "other": 1})

    assert groups(app, "thank") == ["tenant-7"]


def test_jobs_that_wait_for_each_others_ordered_groups_go_on(app: Faultline, queue: Driver) -> None:
    app.queue("ledger", each_group=Limit(ordered=True))

    @app.task(queue="ledger", group="account-{account}")
    async def credit(account: str) -> str:
        return account

    @app.task(queue="ledger", group="account-{source}")
    async def transfer(job: Job, source: str, target: str) -> str:
        await job.receive("go", int)
        return await job.call(credit, target)

    app.declare()
    handles = [transfer.enqueue("A", "B"), transfer.enqueue("B", "A")]

    async def story() -> None:
        for handle in handles:
            await handle.asignal("go", 1)
        in_line = "select count(*) from faultline.open_jobs where task = 'credit' and in_group"
        await auntil(lambda: queue.value(in_line) == 2)
        # Upkeep looks once a minute.
        queue.execute("update faultline.limited_queues set all_events_applied_at = '-infinity'")
        await all_done(app, handles)

    worked(app, {"ledger": 10}, story, workers=1)

    assert [handle.result(5) for handle in handles] == ["B", "A"]
