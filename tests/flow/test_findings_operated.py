"""What broke an earlier design of flows: operators who retry and prune, senders that hold transactions, nudges, leaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, Job, JobFailed, JobState
from faultline.core.model import Submission
from faultline.history.ending import CodeChanged
from faultline.store import verbs
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, deploys, ended, job_of, journal, journals, signals, waits
from tests.waiting import auntil

if TYPE_CHECKING:
    from faultline import JobHandle
    from tests.driver import Clock, Driver


@KINDS
def test_finding_03_what_children_gave_stays_whatever_becomes_of_them(app: Faultline, queue: Driver, kind: str) -> None:
    broken = [1]

    @app.step
    def merge(parts: list[int | None]) -> str:
        return f"merged {parts}"

    @app.task(max_attempts=1)
    async def child(n: int) -> int:
        if n == 2 and broken:
            raise ValueError("two")
        return n

    @task_of(app, kind)
    async def program(job: Job) -> list[Any]:
        parts = await job.map(child, [1, 2, 3], on_failure="keep")
        merged = await job.do(merge, parts)
        await job.receive("go", bool)
        return [parts, merged]

    async def mend(_: JobHandle[Any]) -> None:
        broken.clear()
        # Its parent has gone on without it, so it stays failed; and it is kept for as long as its flow.
        retried = await asyncio.to_thread(queue.value, "select retried from faultline.retry_failed('default')")
        assert retried == 0
        assert await asyncio.to_thread(queue.run, verbs.prune("failed", older_than_seconds=0)) == 0

    handle = program.enqueue()

    assert ended(app, handle, _waits_for(app, "go"), mend, signals(app, "go", True)) == [
        [1, None, 3],
        "merged [1, None, 3]",
    ]


@KINDS
def test_finding_04_a_program_that_has_lost_its_calls_does_not_complete(app: Faultline, kind: str) -> None:
    @app.task
    async def emptied(job: Job) -> str:
        return "done without asking"

    @task_of(app, kind)
    async def program(job: Job) -> bool:
        return await job.receive("approval", bool)

    handle = program.enqueue()
    original = program.fn
    other = emptied.fn if kind == "async" else (lambda _: "done without asking")

    result = ended(
        app, handle, waits(app), deploys(app, program.name, other), signals(app, "approval", False),
        journals(app, "program_changed"), deploys(app, program.name, original),
    )  # fmt: skip

    assert result is False
    assert CodeChanged.__name__ not in str(job_of(app, handle)["last_error"])


def test_finding_06_a_sender_that_keeps_its_transaction_open_holds_nobody(app: Faultline) -> None:
    @app.task(lease=1, max_attempts=1)
    async def program(job: Job) -> str:
        await job.sleep(0)
        await asyncio.sleep(2.5)  # longer than its lease: it must be renewed meanwhile
        await job.step("late", lambda: "written")
        return "done"

    async def story(handle: JobHandle[Any]) -> None:
        await auntil(lambda: job_of(app, handle)["state"] == "running")
        async with await psycopg.AsyncConnection.connect(app.dsn) as sender:
            await sender.execute("select faultline.signal(%s, 'go', 'true')", (handle.id,))
            assert await handle.aresult(60) == "done"
            await sender.rollback()

    handle = program.enqueue()

    assert ended(app, handle, story) == "done"
    assert journal(app, handle, "lease_expired") == []


def test_finding_07_a_parent_that_is_retried_at_once_keeps_its_children(app: Faultline) -> None:
    broken = [1]

    @app.task(max_attempts=1)
    async def child(job: Job, n: int) -> int:
        return await job.receive("child", int) + n

    @app.task(max_attempts=1)
    async def bad() -> None:
        if broken:
            raise ValueError("bad")

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        return await job.gather(job.map(child, [0, 1], on_failure="fast"), job.call(bad))

    async def retry(handle: JobHandle[Any]) -> None:
        await auntil(lambda: job_of(app, handle)["state"] == "failed")
        broken.clear()
        assert app.retry(handle.id) is JobState.QUEUED
        query = "select id from faultline.jobs where task like '%child' and state <> 'cancelled'"
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            await auntil(lambda: len(connection.execute(query).fetchall()) == 2)
            for (child_id,) in connection.execute(query).fetchall():
                connection.execute("select faultline.signal(%s, 'child', '10')", (child_id,))

    result = ended(app, program.enqueue(), retry)

    assert [list(result[0]), result[1]] == [[10, 11], None]


def test_finding_07_a_child_whose_parent_has_ended_is_not_retried_alone(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def child() -> None:
        raise ValueError("bad")

    @app.task
    async def program(job: Job) -> Any:
        return await job.call(child)

    handle = program.enqueue()
    assert isinstance(ended(app, handle), JobFailed)
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        row = connection.execute("select id from faultline.jobs where task like '%child'").fetchone()
    assert row is not None

    with pytest.raises(Exception, match="retry that job instead"):
        app.retry(row[0])


def test_finding_10_many_cancelled_trees_are_swept_bite_by_bite(queue: Driver) -> None:
    parents, children = 20, 25
    for _ in range(parents):
        lease = queue.new_lease()
        queue.run(
            verbs.spawn(
                lease, "1", [Submission(task="c", queue="children")] * children, name="c", digest="d", total=children
            )
        )
        queue.run(verbs.cancel(lease.job_id))
    most, bites = 40, 0
    still_open = "select count(*) from faultline.open_jobs where state in ('queued', 'running')"

    while left := queue.value(still_open):
        queue.run(verbs.sweep(most))
        assert left - queue.value(still_open) <= most
        bites += 1
        assert bites < 10 * parents * children / most

    assert bites >= parents * children / most


def test_finding_15_jobs_that_watch_each_other_fail_and_say_so(app: Faultline, queue: Driver) -> None:
    handles: list[JobHandle[Any]] = []

    @app.task(max_attempts=1)
    async def program(job: Job, other: int) -> Any:
        while len(handles) < 2:
            await asyncio.sleep(0.01)
        return await job.watch(handles[other])

    handles.append(program.enqueue(1))
    first = handles[0]

    async def second(_: JobHandle[Any]) -> None:
        handles.append(program.enqueue(0))
        # The second that comes to its wait is refused, unless both come at once: reconcile finds that.
        query = "select count(*) from faultline.jobs where state = 'failed'"
        await auntil(lambda: queue.value(query) or queue.value("select count(*) from faultline.reconcile()") is None)

    assert isinstance(ended(app, first, second), JobFailed)


def test_finding_19_a_new_wait_forgets_the_lost_workers_before_it(queue: Driver, clock: Clock) -> None:
    lease = queue.new_lease(max_attempts=5)
    for _ in range(2):
        clock.advance(3600)
        queue.run(verbs.reap())
        clock.advance(3600)
        lease = queue.claim_one()
    assert queue.value("select reaps from faultline.open_jobs where id = %s", lease.job_id) > 0

    written = queue.run(verbs.suspend([lease], ['[{"number": "1", "kind": "signal", "name": "go", "seconds": 1}]']))

    assert (written.stale, written.busy) == ([], [])
    assert queue.value("select reaps from faultline.open_jobs where id = %s", lease.job_id) == 0


def test_finding_21_nothing_is_left_of_a_job_whose_signal_was_there_already(app: Faultline, queue: Driver) -> None:
    @app.task
    async def program(job: Job) -> list[int]:
        return [await job.receive("one", int), await job.receive("two", int)]

    handle = program.enqueue()
    queue.run(verbs.signal(handle.id, "one", 1))
    queue.run(verbs.signal(handle.id, "two", 2))
    assert ended(app, handle) == [1, 2]
    assert list(calls(app, handle)) == ["1", "2"]

    queue.run(verbs.prune("flows", older_than_seconds=0))
    queue.execute("select * from faultline.resolve()")  # a worker drops nudges that are about nobody

    for table in ("calls", "edges", "signals", "nudges", "sweeps", "flows", "streams", "ledger"):
        assert queue.value(f"select count(*) from faultline.{table}") == 0, table


def test_finding_20_a_resumed_job_stands_behind_what_was_due_before(queue: Driver, clock: Clock) -> None:
    queue.enqueue()
    lease = queue.claim_one()
    before = queue.enqueue()
    queue.run(verbs.suspend([lease], ['[{"number": "1", "kind": "sleep", "name": "sleep", "seconds": 1}]']))
    clock.advance(10)
    after = queue.enqueue()

    claimed = [queue.claim_one().job_id for _ in range(3)]

    assert claimed == [before, lease.job_id, after]


def test_finding_24_a_plain_job_in_the_ledger_is_at_most_eight_bytes_longer(queue: Driver) -> None:
    queue.enqueue(idempotency_key="k", args={"n": 1})
    queue.complete(queue.claim_one(), result=1)
    width = "select pg_column_size(l) from faultline.ledger l"
    plain = queue.value(width)
    columns = queue.value(
        "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute"
        " where attrelid = 'faultline.ledger'::regclass and attnum > 0 and not attisdropped"
        " and attname <> all ('{flow_id,progress}')"
    )

    without = queue.value(f"select pg_column_size(row({columns})) from faultline.ledger")

    assert plain - without <= 8


def _waits_for(app: Faultline, name: str) -> Any:
    async def wait(handle: JobHandle[Any]) -> None:
        await auntil(lambda: any(one["name"] == name and one["awaited"] for one in calls(app, handle).values()))

    return wait
