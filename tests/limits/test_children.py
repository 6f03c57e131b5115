"""Groups of jobs that other jobs and topics make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline import Job, Limit
from faultline.testing import drain

if TYPE_CHECKING:
    from psycopg import Connection

    from faultline import Faultline


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


def test_a_topic_fills_the_group_from_what_is_published(app: Faultline) -> None:
    @app.on("order.paid")
    @app.task(queue="mail", group="tenant-{tenant}")
    async def thank(tenant: int) -> None: ...

    app.subscribe()

    app.publish("order.paid", {"tenant": 7, "other": 1})

    assert groups(app, "thank") == ["tenant-7"]
