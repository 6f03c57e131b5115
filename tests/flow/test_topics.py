"""Topics: a program that publishes needs none of the subscribers' code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import ConfigError, Faultline, JobRejected, JobState, KeyConflict
from faultline.store.verbs import topics
from faultline.testing import adrain, drain
from tests.waiting import auntil
from tests.worker.working import PATIENCE, logged, results, work

if TYPE_CHECKING:
    import io

    from faultline import JobHandle


def names(app: Faultline, handles: list[JobHandle[Any]]) -> list[str]:
    return [app.job(handle.id).task for handle in handles]


def subscribe_two(app: Faultline) -> None:
    @app.on("order.paid")
    @app.task(queue="mail", max_attempts=3)
    async def receipt(order: int) -> str:
        return f"receipt for {order}"

    @app.on("order.paid", "order.sent")
    @app.task
    def count(**fields: Any) -> int:
        return len(fields)


def test_every_subscribed_task_gets_a_job_with_the_fields_that_it_takes(app: Faultline) -> None:
    subscribe_two(app)

    assert app.declare() == 3
    handles = app.publish("order.paid", {"order": 42, "sum": 9.5})

    assert names(app, handles) == ["count", "receipt"]
    assert app.job(handles[1].id).queue == "mail"
    assert results(app, handles, queues=app.queues()) == [2, "receipt for 42"]


def test_a_publisher_needs_no_code_of_the_subscribers(app: Faultline, dsn: str) -> None:
    subscribe_two(app)
    app.declare()

    with Faultline(dsn) as publisher:
        assert len(publisher.publish("order.paid", {"order": 1})) == 2
        assert [handle.created for handle in publisher.publish("order.sent")] == [True]
        assert publisher.enqueued == {"mail": 1, "default": 2}


def test_a_topic_without_subscribers_enqueues_nothing(app: Faultline) -> None:
    assert app.publish("order.lost", {"order": 1}) == []


def test_a_worker_writes_the_subscriptions_of_its_tasks_when_it_starts(app: Faultline) -> None:
    subscribe_two(app)

    async def story() -> list[Any]:
        return [await handle.aresult(PATIENCE) for handle in await app.apublish("order.paid", {"order": 7})]

    assert work(app, story, app.queues()) == [1, "receipt for 7"]


def test_a_subscriber_whose_options_have_changed_is_updated(app: Faultline, dsn: str) -> None:
    subscribe_two(app)
    app.declare()
    with Faultline(dsn) as newer:

        @newer.on("order.paid")
        @newer.task(queue="slow", priority=5)
        def receipt(order: int, sum: float) -> None: ...  # noqa: A002

        assert newer.declare() == 1
        assert newer.declare() == 0
        [_, handle] = newer.publish("order.paid", {"order": 1, "sum": 2.5})

        job = newer.job(handle.id)
        assert (job.queue, job.priority, job.args) == ("slow", 5, {"order": 1, "sum": 2.5})


def test_what_is_published_in_a_transaction_exists_once_that_commits(app: Faultline, dsn: str) -> None:
    subscribe_two(app)
    app.declare()

    with psycopg.connect(dsn) as conn:
        handles = app.using(conn).publish("order.paid", {"order": 1})
        conn.rollback()
        kept = app.using(conn).publish("order.paid", {"order": 2})
        conn.commit()

    with psycopg.connect(dsn) as conn:
        found = {row[0] for row in conn.execute("select id from faultline.jobs")}
    assert found == {handle.id for handle in kept}
    assert found.isdisjoint(handle.id for handle in handles)


async def _apublished(app: Faultline, dsn: str) -> list[JobHandle[Any]]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        handles = await app.using(conn).apublish("order.paid", {"order": 1})
        assert await app.adeclare() == 0
    await app.async_database.close()
    return handles


def test_async_programs_publish_in_their_transactions_too(app: Faultline, dsn: str) -> None:
    subscribe_two(app)
    app.declare()

    handles = asyncio.run(_apublished(app, dsn))

    assert [app.job(handle.id).state for handle in handles] == [JobState.QUEUED] * 2


def test_the_same_key_is_published_once(app: Faultline) -> None:
    subscribe_two(app)
    app.declare()

    first = app.publish("order.paid", {"order": 1}, idempotency_key="paid:1")
    again = app.publish("order.paid", {"order": 1}, idempotency_key="paid:1")

    assert [handle.id for handle in again] == [handle.id for handle in first]
    assert [handle.created for handle in (*first, *again)] == [True, True, False, False]
    with pytest.raises(KeyConflict):
        app.publish("order.paid", {"order": 2}, idempotency_key="paid:1")


def test_an_ended_subscription_enqueues_no_more_jobs(app: Faultline) -> None:
    subscribe_two(app)
    app.declare()

    assert app.unsubscribe("order.paid", "receipt", reason="moved", by="ada")
    assert not app.unsubscribe("order.paid", "receipt")

    assert names(app, app.publish("order.paid", {"order": 1})) == ["count"]
    assert [one.task for one in app.database.run(topics.subscriptions())] == ["count", "count"]


def test_a_job_of_a_subscriber_that_gets_too_little_is_warned_about(app: Faultline, log: io.StringIO) -> None:
    subscribe_two(app)
    app.declare()

    [_, handle] = app.publish("order.paid", {"sum": 1})

    work(app, lambda: auntil(lambda: logged(log, "arguments_unfit")), app.queues())
    [line, *_] = logged(log, "arguments_unfit")
    assert line["job_id"] == str(handle.id)
    assert "order" in line["error"]


@pytest.mark.parametrize("payload", [[1, 2], "text", 7, {1: 2}, {"a": object()}])
def test_a_payload_that_cannot_become_arguments_is_refused(app: Faultline, payload: Any) -> None:
    with pytest.raises(JobRejected):
        app.publish("order.paid", payload)


@pytest.mark.parametrize("topic", ["", " order", "a\nb", "x" * 201])
def test_a_topic_needs_a_name_that_can_be_read(app: Faultline, topic: str) -> None:
    with pytest.raises(JobRejected, match="topic"):
        app.publish(topic)
    with pytest.raises(ConfigError, match="topic"):
        app.on(topic)


def test_on_stands_above_task(app: Faultline) -> None:
    def plain() -> None: ...

    with pytest.raises(ConfigError, match="put it above"):
        app.on("order.paid")(plain)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name the topic"):
        app.on()


def test_a_subscription_is_ended_by_the_task_or_its_name(app: Faultline) -> None:
    @app.on("a", "b")
    @app.task
    def sub() -> None: ...

    async def unsubscribes() -> bool:
        found = await app.aunsubscribe("b", "sub")
        await app.async_database.close()
        return found

    app.declare()

    assert app.unsubscribe("a", sub) is True
    assert asyncio.run(unsubscribes()) is True
    assert app.unsubscribe("a", sub) is False
    with pytest.raises(JobRejected, match="the task must be text of 1 to 200"):
        app.unsubscribe("a", 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["declare", "drain", "adrain"])
def test_a_test_that_declares_or_drains_has_its_subscriptions(app: Faultline, how: str) -> None:
    noted = []

    @app.on("order.paid")
    @app.task
    def receipt(order: int) -> None:
        noted.append(order)

    if how == "declare":
        assert app.declare() == 1
        assert app.declare() == 0
    elif how == "drain":
        drain(app)
    else:
        asyncio.run(adrain(app))

    assert len(app.publish("order.paid", {"order": 7})) == 1
    assert drain(app).succeeded == 1
    assert noted == [7]
