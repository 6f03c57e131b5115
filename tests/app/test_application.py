from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from faultline import (
    BlockingJob,
    ConfigError,
    Faultline,
    IllegalTransition,
    JobNotFound,
    JobRejected,
    JobState,
    KeyConflict,
)
from faultline.core.errors import SchemaMissing
from faultline.core.ids import Ids

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from faultline import Task


@pytest.fixture
def charge(app: Faultline) -> Task[[int, str], dict[str, int]]:
    @app.task(queue="money", max_attempts=3, lease=20, priority=2)
    def charge(job: BlockingJob, order_id: int, note: str = "") -> dict[str, int]:
        return {"order": order_id}

    return charge


def test_a_job_is_stored_under_the_names_of_its_parameters(app: Faultline, charge: Task[Any, Any]) -> None:
    handle = charge.enqueue(42, note="quick")

    job = app.job(handle.id)
    assert handle.created
    assert (job.task, job.queue, job.priority, job.max_attempts) == ("charge", "money", 2, 3)
    assert job.args == {"order_id": 42, "note": "quick"}
    assert job.state is JobState.QUEUED


def test_a_task_is_still_a_function(charge: Task[Any, Any]) -> None:
    assert charge(None, 42) == {"order": 42}


def test_options_hold_for_one_enqueue_and_leave_the_task_alone(app: Faultline, charge: Task[Any, Any]) -> None:
    special = charge.options(queue="slow", priority=-5, delay=timedelta(minutes=1), max_attempts=9).enqueue(1)
    plain = charge.enqueue(1)

    job = app.job(special.id)
    assert (job.queue, job.priority, job.max_attempts) == ("slow", -5, 9)
    assert job.next_run_at is not None
    assert (job.next_run_at - job.created_at).total_seconds() == 60
    assert app.job(plain.id).queue == "money"


def test_run_at_is_a_moment_whatever_its_time_zone(app: Faultline, charge: Task[Any, Any]) -> None:
    moment = datetime(2031, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))

    handle = charge.options(run_at=moment).enqueue(1)

    assert app.job(handle.id).next_run_at == datetime(2031, 5, 1, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"run_at": datetime(2031, 5, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, "run_at must be a datetime"),
        ({"run_at": datetime.now(UTC), "delay": 1}, "a delay or a run_at, not both"),
        ({"delay": -1}, "delay must be between 0"),
        ({"delay": timedelta(days=-1)}, "delay must be between 0"),
        ({"delay": float("nan")}, "delay must be a number of seconds"),
        ({"delay": "soon"}, "delay must be a number of seconds"),
        ({"queue": ""}, "queue must be text of 1 to 100"),
        ({"queue": "q" * 101}, "queue has 101 characters"),
        ({"queue": "a\x00b"}, "NUL"),
        ({"queue": "a\ud800b"}, "half of a surrogate pair"),
        ({"queue": 5}, "queue must be text"),
        ({"priority": 1001}, "priority must be a whole number from -1000 to 1000"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"lease": 0}, "lease must be between 0.1"),
        ({"idempotency_key": ""}, "idempotency_key must be text"),
        ({"idempotency_key": "k" * 501}, "501 characters"),
        ({"lease": 10**400}, "lease must be a number"),
        ({"keep_args": "no"}, "keep_args must be True or False"),
        ({"id": '","task":"injected'}, "id must be a UUID"),
        ({"id": uuid4()}, "id must be a UUID of version 7"),
        ({"run_at": datetime.min.replace(tzinfo=UTC)}, "outside the years 1971 to 9998"),
        ({"colour": "red"}, "unknown option colour; the options are delay, "),
    ],
)
def test_options_that_make_no_sense_are_refused_where_they_are_set(
    charge: Task[Any, Any], words: dict[str, Any], why: str
) -> None:
    with pytest.raises(JobRejected, match=why):
        charge.options(**words)


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, "a", 3), {}, "too many positional arguments"),
        ((1,), {"colour": "red"}, "unexpected keyword argument 'colour'"),
        ((1,), {"job": 5}, "unexpected keyword argument 'job'"),
        ((float("nan"),), {}, "order_id is nan"),
        ((1, "a\x00b"), {}, "note contains a NUL"),
        (({1, 2},), {}, "order_id is a set"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_enqueued(
    app: Faultline, charge: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], why: str
) -> None:
    with pytest.raises(JobRejected, match=why):
        charge.enqueue(*args, **kwargs)

    assert count(app) == 0


def count(app: Faultline) -> int:
    with app.database.connect() as connection:
        row = connection.execute("select count(*) from faultline.jobs").fetchone()
    assert row is not None
    return int(row[0])


def test_arguments_of_more_than_a_mebibyte_are_refused(app: Faultline, charge: Task[Any, Any]) -> None:
    with pytest.raises(JobRejected, match=r"job 1 of 1 .*more than the limit of 1048576.*pass a reference"):
        charge.enqueue(1, note="x" * 1_048_576)
    charge.enqueue(1, note="x" * 1_000_000)

    assert count(app) == 1


def test_the_databases_own_limit_holds_in_the_callers_transaction_too(app: Faultline, charge: Task[Any, Any]) -> None:
    with app.database.connect() as connection, pytest.raises(JobRejected, match="more than the limit of 1048576"):
        charge.using(connection).enqueue(1, note="x" * 1_048_576)


# Bulk


def test_large_keyed_bulks_in_opposite_order_do_not_deadlock(app: Faultline, charge: Task[Any, Any]) -> None:
    """Several statements of one transaction: the keys must be taken in one order over all of them."""
    bulk = [charge.options(idempotency_key=f"k{n:05}").bind(n) for n in range(5000)]

    with ThreadPoolExecutor(2) as threads:
        forward, backward = threads.map(app.enqueue_many, [bulk, bulk[::-1]])

    assert [handle.id for handle in forward] == [handle.id for handle in backward][::-1]
    assert app.job(forward[4321].id).args == {"order_id": 4321}
    assert count(app) == 5000


def test_many_jobs_of_several_tasks_are_enqueued_in_the_order_given(app: Faultline, charge: Task[Any, Any]) -> None:
    @app.task
    def ship(order_id: int) -> None: ...

    handles = app.enqueue_many(task.bind(n) for n in range(3000) for task in (charge, ship))

    assert len({handle.id for handle in handles}) == 6000
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
    assert (app.job(handles[4001].id).task, app.job(handles[4001].id).args) == ("ship", {"order_id": 2000})


def test_one_bad_job_in_a_bulk_takes_all_the_others_back(app: Faultline, charge: Task[Any, Any]) -> None:
    charge.options(idempotency_key="taken").enqueue(1)
    good = [charge.bind(n) for n in range(5000)]

    with pytest.raises(KeyConflict, match="job 1001 "):
        app.enqueue_many([*good[:3000], charge.options(idempotency_key="taken").bind(2), *good[3000:]])

    assert count(app) == 1


def test_enqueuing_nothing_is_fine(app: Faultline) -> None:
    assert app.enqueue_many([]) == []


# Keys and ids


def test_the_same_key_gives_the_same_job_and_says_that_it_is_not_new(charge: Task[Any, Any]) -> None:
    once = charge.options(idempotency_key="order:42").enqueue(42)
    again = charge.options(idempotency_key="order:42").enqueue(42)

    assert (once.id, once.created, again.created) == (again.id, True, False)


def test_a_callers_id_is_kept(charge: Task[Any, Any]) -> None:
    job_id = Ids().new()

    assert charge.options(id=job_id).enqueue(42).id == job_id
    assert charge.options(id=job_id).enqueue(42).created is False


# The caller's transaction


def test_a_job_joins_the_callers_transaction(app: Faultline, charge: Task[Any, Any]) -> None:
    with app.database.connect() as connection:
        with pytest.raises(ZeroDivisionError), connection.transaction():
            charge.using(connection).enqueue(1)
            raise ZeroDivisionError
        assert count(app) == 0

        with connection.transaction():
            handle = charge.using(connection).enqueue(1)
            assert count(app) == 0
        assert app.job(handle.id).state is JobState.QUEUED


def test_a_job_joins_a_transaction_of_any_row_factory(app: Faultline, dsn: str, charge: Task[Any, Any]) -> None:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        handle = charge.using(connection).enqueue(1)
        many = app.using(connection).enqueue_many([charge.bind(2), charge.bind(3)])
        connection.commit()

    assert app.job(handle.id).args == {"order_id": 1}
    assert len(many) == 2


def test_a_job_joins_the_callers_async_transaction(app: Faultline, dsn: str, charge: Task[Any, Any]) -> None:
    async def enqueue() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await charge.using(connection).aenqueue(1)
            await connection.rollback()
            await charge.using(connection).aenqueue(2)
            await app.using(connection).aenqueue_many([charge.bind(3)])
            await connection.commit()

    asyncio.run(enqueue())

    assert count(app) == 2


# Cancel, retry, look up


async def _closing(app: Faultline, call: Awaitable[int]) -> int:
    async with app:
        return await call


def test_all_jobs_that_match_are_cancelled(app: Faultline, charge: Task[Any, Any]) -> None:
    by_group, by_task = charge.options(group="g").enqueue(1), charge.enqueue(2)
    app.enqueue_many(charge.options(queue="bulk").bind(n) for n in range(1001))

    assert app.cancel_jobs(group="g", reason="withdrawn", by="billing") == 1
    assert by_group.job().last_error == "cancelled: withdrawn"
    assert app.cancel_jobs(queue="bulk", state="running") == 0
    assert asyncio.run(_closing(app, app.acancel_jobs(queue="bulk", state="queued"))) == 1001
    assert by_task.job().state == "queued"
    assert app.cancel_jobs(task="charge") == 1


def test_what_to_cancel_must_be_said(app: Faultline) -> None:
    with pytest.raises(JobRejected, match="by queue, task, group or state"):
        app.cancel_jobs(reason="all of them")
    with pytest.raises(JobRejected, match="a job that has failed cannot be cancelled"):
        app.cancel_jobs(state="failed")
    with pytest.raises(JobRejected, match="'open' is not a state of a job"):
        asyncio.run(app.acancel_jobs(state="open"))


def test_cancel_and_retry(app: Faultline, charge: Task[Any, Any]) -> None:
    job_id = charge.enqueue(1).id

    assert app.cancel(job_id, "mistake") is JobState.CANCELLED
    assert app.job(job_id).last_error == "cancelled: mistake"
    assert app.retry(job_id) is JobState.QUEUED
    with pytest.raises(IllegalTransition, match="only a failed or cancelled job"):
        app.retry(job_id)


def test_an_unknown_job(app: Faultline) -> None:
    for call in (app.job, app.cancel, app.retry):
        with pytest.raises(JobNotFound, match="no job"):
            call(uuid4())


@pytest.mark.parametrize("wrong", [42, None, b"x", "x", "\ud800", "1-2", object()])
def test_what_is_no_job_id_is_refused(app: Faultline, wrong: Any) -> None:
    for call in (app.job, app.cancel, app.retry, app.handle):
        with pytest.raises(JobRejected, match="invalid job id"):
            call(wrong)
    for acall in (app.ajob, app.acancel, app.aretry):
        with pytest.raises(JobRejected, match="invalid job id"):
            asyncio.run(acall(wrong))


def test_a_job_id_may_be_given_as_text(app: Faultline, charge: Task[Any, Any]) -> None:
    handle = charge.enqueue(1)
    text: Any = str(handle.id)

    assert app.job(text).id == app.handle(text).id == handle.id
    assert app.cancel(text) is JobState.CANCELLED
    assert app.retry(text) is JobState.QUEUED


def test_the_async_twins_do_the_same(app: Faultline, charge: Task[Any, Any]) -> None:
    async def story() -> list[object]:
        handle = await charge.options(idempotency_key="k").aenqueue(1)
        again = await charge.options(idempotency_key="k").aenqueue(1)
        many = await app.aenqueue_many([charge.bind(n) for n in range(3)])
        states = [await app.acancel(handle.id), await app.aretry(handle.id), (await handle.ajob()).state]
        await app.aclose()
        return [again.id == handle.id, len(many), *states]

    asyncio.run(story())
    found = asyncio.run(story())  # a second event loop gets a pool of its own

    assert found == [True, 3, "cancelled", "queued", "queued"]


# Life


def test_a_forked_child_does_not_talk_through_its_parents_connections(app: Faultline, charge: Task[Any, Any]) -> None:
    charge.enqueue(0)
    reading, writing = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            seen = [app.job(charge.enqueue(n).id).args["order_id"] for n in range(100, 150)]
            os.write(writing, b"ok" if seen == list(range(100, 150)) else b"crossed")
        finally:
            os._exit(0)
    own = [app.job(charge.enqueue(n).id).args["order_id"] for n in range(50)]
    os.waitpid(child, 0)

    assert own == list(range(50))
    assert os.read(reading, 10) == b"ok"
    os.close(reading)
    os.close(writing)


def test_an_application_without_a_database_says_so_when_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAULTLINE_DSN", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = Faultline()

    @app.task
    def hello() -> None: ...

    with pytest.raises(ConfigError, match="no database is configured"):
        hello.enqueue()


def test_a_database_without_the_schema_is_said_to_be_so_by_every_command(empty_dsn: str) -> None:
    with Faultline(empty_dsn) as app, pytest.raises(SchemaMissing, match="run: faultline migrate"):
        app.job(uuid4())


def test_an_application_can_be_used_again_after_it_was_closed(app: Faultline, charge: Task[Any, Any]) -> None:
    charge.enqueue(1)
    app.close()
    charge.enqueue(2)

    assert count(app) == 2


def test_ids_carry_the_databases_time_not_the_clients(app: Faultline, charge: Task[Any, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)

    handle = charge.enqueue(1)

    created = app.job(handle.id).created_at.timestamp()
    assert abs((handle.id.int >> 80) / 1000 - created) < 60
