"""Jobs that a program calls: each is enqueued once, and what became of it is the same in every run."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import ChildFailed, DatabaseBusy, Faultline, Job, JobCancelled, JobFailed, JobState
from faultline.core.model import Submission
from faultline.history.children import digest_of_jobs
from faultline.store import verbs
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, children_of, ended, job_of, signals, waits
from tests.waiting import auntil

if TYPE_CHECKING:
    from uuid import UUID

    from faultline import JobHandle
    from tests.driver import Driver

MANY = 1_203


@dataclass
class Summary:
    words: int


@KINDS
def test_a_map_has_a_child_for_each_item_and_their_results_in_the_order_of_the_items(app: Faultline, kind: str) -> None:
    @task_of(app, kind)
    async def child(n: int) -> Summary:
        return Summary(n * 10)

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        return [one.words for one in await job.map(child, (n for n in [3, 1, 2]))]

    handle = program.enqueue()

    assert ended(app, handle) == [30, 10, 20]
    assert job_of(app, handle)["attempt"] == 1


@KINDS
def test_a_map_over_nothing_waits_for_nothing(app: Faultline, kind: str) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        before: list[Any] = []
        for on_failure in ("raise", "keep", "fast"):
            before += await job.map(child, [], on_failure=on_failure)
        return before

    handle = program.enqueue()

    assert ended(app, handle) == []
    assert job_of(app, handle)["fencing_token"] == 1


@KINDS
def test_a_map_that_keeps_failures_has_none_in_their_places(app: Faultline, kind: str) -> None:
    @app.task(max_attempts=1)
    async def child(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        found = await job.map(child, [0, 1, 2], on_failure="keep")
        await job.sleep(0.01)
        return found

    assert ended(app, program.enqueue()) == [0, None, 2]


@KINDS
def test_a_fast_map_does_not_wait_for_the_others_which_end_with_it(app: Faultline, kind: str) -> None:
    @app.task(max_attempts=1)
    async def child(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        await asyncio.Event().wait()
        return n

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        return await job.map(child, [0, 1, 2], on_failure="fast")

    handle = program.enqueue()
    error = str(ended(app, handle, until_states(app, {"cancelled": 2, "failed": 2})))

    assert ChildFailed.__name__ in error
    assert "number 1: failed: ValueError: one" in error


@KINDS
def test_a_map_of_more_than_one_chunk_enqueues_each_child_once(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @task_of(app, kind)
    async def program(job: Job) -> int:
        return sum(await job.map(child, range(MANY)))

    handle = program.enqueue()

    assert ended(app, handle) == sum(range(MANY))
    assert queue.value("select count(*) from faultline.ledger") == 1 + MANY
    assert calls(app, handle)["1"]["spawned"] == MANY
    assert queue.broken_invariants() == []


def test_large_results_of_children_are_not_copied_into_the_history(app: Faultline, queue: Driver) -> None:
    @app.task
    async def child(n: int) -> str:
        return str(n) * 900_000

    @app.task
    async def program(job: Job) -> list[str]:
        found = await job.map(child, range(5))
        await job.sleep(0.01)
        return [one[0] for one in found if len(one) == 900_000]

    handle = program.enqueue()

    assert ended(app, handle) == ["0", "1", "2", "3", "4"]
    assert queue.value("select sum(pg_column_size(result)) from faultline.calls") < 1_000


@KINDS
def test_results_come_page_by_page_in_order(app: Faultline, kind: str) -> None:
    @app.task
    async def child(n: int) -> Summary:
        return Summary(n)

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        found = []
        async for one in job.results(child, range(7), page=3):
            found.append(one.words)
            if one.words == 3:
                await job.sleep(0.01)
        return found

    handle = program.enqueue()

    assert ended(app, handle) == list(range(7))
    assert [one["kind"] for one in calls(app, handle).values()] == ["children", "children", "children", "sleep"]


@KINDS
def test_results_come_while_later_ones_are_still_open(app: Faultline, kind: str) -> None:
    free: list[int] = []
    seen: list[int] = []

    @app.task
    async def child(n: int) -> int:
        while n >= 2 and not free:
            await asyncio.sleep(0.01)
        return n

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        found = []
        async for one in job.results(child, range(4), page=2):
            seen.append(one)
            found.append(one)
        return found

    async def until_seen(_: Any) -> None:
        await auntil(lambda: 1 in seen)
        assert 2 not in seen
        free.append(1)

    assert ended(app, program.enqueue(), until_seen) == [0, 1, 2, 3]


@KINDS
def test_a_called_task_gives_its_result_as_it_is_annotated(app: Faultline, kind: str) -> None:
    @app.task
    async def child(n: int, *, times: int = 1) -> Summary:
        return Summary(n * times)

    @task_of(app, kind)
    async def program(job: Job) -> list[Any]:
        one: Summary = await job.call(child, 4, times=3)
        await job.sleep(0.01)
        return [type(one).__name__, one.words]

    assert ended(app, program.enqueue()) == ["Summary", 12]


@KINDS
def test_a_watched_job_gives_its_result_and_belongs_to_itself(app: Faultline, kind: str) -> None:
    gate: list[int] = []

    @app.task
    async def other() -> Summary:
        while not gate:
            await asyncio.sleep(0.01)
        return Summary(8)

    watched = other.enqueue()

    @task_of(app, kind)
    async def program(job: Job) -> list[Any]:
        one = await job.watch(watched)
        raw = await job.watch(str(watched.id))
        return [type(one).__name__, one.words, raw]

    @task_of(app, kind)
    async def leaves(job: Job) -> None:
        await job.watch(watched)

    leaving, handle = leaves.enqueue(), program.enqueue()

    async def cancelled(_: Any) -> None:
        await waits(app)(leaving)
        await app.acancel(leaving.id)
        gate.append(1)

    assert ended(app, handle, waits(app), cancelled) == ["Summary", 8, {"words": 8}]
    assert watched.job().state == JobState.SUCCEEDED


@KINDS
def test_what_was_seen_of_a_watched_job_stays_when_that_job_is_pruned(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task
    async def other() -> Summary:
        return Summary(8)

    watched = other.enqueue()

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        one: Summary = await job.watch(watched)
        return [one.words, await job.receive("go", int)]

    handle = program.enqueue()

    async def prunes(_: Any) -> None:
        await auntil(lambda: "2" in calls(app, handle))
        await waits(app)(handle)
        assert queue.run(verbs.prune("ledger", older_than_seconds=0)) == 1

    assert ended(app, handle, prunes, signals(app, "go", 1)) == [8, 1]


@KINDS
def test_a_job_that_failed_fails_whoever_watches_it(app: Faultline, kind: str) -> None:
    @app.task(max_attempts=1)
    async def other() -> None:
        raise ValueError("never")

    watched = other.enqueue()

    @task_of(app, kind)
    async def program(job: Job) -> None:
        await job.watch(watched)

    error = str(ended(app, program.enqueue()))

    assert ChildFailed.__name__ in error
    assert "ValueError: never" in error


@KINDS
def test_a_job_cannot_wait_for_itself_or_for_one_that_is_unknown(app: Faultline, kind: str) -> None:
    @task_of(app, kind, max_attempts=1)
    async def program(job: Job, whom: str | None) -> None:
        await job.watch(whom or job.id)

    assert "wait" in str(ended(app, program.enqueue(None)))
    assert "does not exist" in str(ended(app, program.enqueue("00000000-0000-7000-8000-000000000007")))


@KINDS
def test_a_detached_job_is_enqueued_once_and_outlives_its_parent(app: Faultline, queue: Driver, kind: str) -> None:
    @app.task
    async def letter(to: str) -> str:
        return to

    @task_of(app, kind, max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job) -> None:
        sent: list[UUID] = [await job.enqueue(letter, "you")]
        await job.sleep(0.01)
        assert job.attempt == 0, f"sent {sent[0]}"

    handle = program.enqueue()
    error = ended(app, handle, until_states(app, {"succeeded": 1, "failed": 1}))

    assert isinstance(error, JobFailed)
    (detached,) = queue.value("select array_agg(job_id) from faultline.ledger")
    assert f"sent {detached}" in str(error)
    assert queue.value("select flow_id from faultline.ledger") is None


@KINDS
def test_a_program_sleeps_until_a_time(app: Faultline, kind: str) -> None:
    times: list[datetime] = []
    woke: list[datetime] = []

    @task_of(app, kind)
    async def program(job: Job) -> str:
        if not times:
            times.append(datetime.now(UTC) + timedelta(seconds=1))
        await job.sleep_until(times[0])
        woke.append(datetime.now(UTC))
        return "awake"

    handle = program.enqueue()

    assert ended(app, handle) == "awake"
    assert job_of(app, handle)["fencing_token"] > 1
    # By the clocks of two machines that are one here; the server rounds to microseconds.
    assert woke[0] >= times[0] - timedelta(milliseconds=5)


def test_cancelling_a_job_cancels_the_whole_tree_below_it(app: Faultline, queue: Driver) -> None:
    @app.task
    async def leaf(n: int) -> int:
        await asyncio.Event().wait()
        return n

    @app.task
    async def middle(job: Job, n: int) -> list[int]:
        return await job.map(leaf, [n, n + 1])

    @app.task
    async def root(job: Job) -> list[list[int]]:
        return await job.map(middle, [10, 20])

    handle = root.enqueue()

    async def cancels(_: Any) -> None:
        await auntil(lambda: queue.value("select count(*) from faultline.open_jobs where state = 'running'") == 4)
        await app.acancel(handle.id)

    assert isinstance(ended(app, handle, cancels, until_states(app, {"cancelled": 7})), JobCancelled)
    assert queue.broken_invariants() == []


async def retried(app: Faultline, job_id: UUID) -> None:
    """As soon as the parent, which may look at its children just then, lets it."""
    while True:
        with contextlib.suppress(DatabaseBusy):
            await app.aretry(job_id)
            return
        await asyncio.sleep(0.01)


@KINDS
def test_the_retry_of_a_failed_child_counts_for_its_parent_that_still_waits(app: Faultline, kind: str) -> None:
    broken = [1]
    gate: list[int] = []

    @app.task(max_attempts=1)
    async def child(n: int) -> int:
        while n == 0 and not gate:
            await asyncio.sleep(0.01)
        if n == 1 and broken:
            raise ValueError("one")
        return n

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        return await job.map(child, [0, 1])

    async def retries(handle: JobHandle[Any]) -> None:
        await waits(app)(handle)
        failed = children_of(app, handle)[1]
        await auntil(lambda: app.job(failed).state == JobState.FAILED)
        broken.clear()
        await retried(app, failed)
        await auntil(lambda: app.job(failed).state == JobState.SUCCEEDED)
        gate.append(1)

    assert ended(app, program.enqueue(), retries) == [0, 1]


@KINDS
def test_the_retry_of_a_failed_parent_runs_what_failed_below_it_and_goes_on(app: Faultline, kind: str) -> None:
    broken = [1]
    ran: list[int] = []

    @app.task(max_attempts=1)
    async def child(n: int) -> int:
        ran.append(n)
        if n == 1 and broken:
            raise ValueError("one")
        return n

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        return await job.map(child, [0, 1])

    handle = program.enqueue()
    assert isinstance(ended(app, handle), JobFailed)
    broken.clear()

    app.retry(handle.id)

    assert ended(app, handle) == [0, 1]
    assert sorted(ran) == [0, 1, 1]


@pytest.mark.parametrize("on_failure", ["maybe", None])
def test_a_map_takes_no_other_policy(app: Faultline, on_failure: Any) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        return await job.map(child, [1], on_failure=on_failure)

    assert "on_failure must be raise, keep or fast" in str(ended(app, program.enqueue()))


def until_states(app: Faultline, wanted: dict[str, int]) -> Any:
    """Wait until there are so many jobs in these states."""
    query = "select state, count(*) from faultline.jobs where state = any (%s) group by state"

    async def wait(_: JobHandle[Any]) -> None:
        with psycopg.connect(app.dsn, autocommit=True) as connection:
            await auntil(lambda: dict(connection.execute(query, (list(wanted),)).fetchall()) == wanted)

    return wait


@pytest.mark.parametrize(
    "value", ["0", "-1", "999999999999999", "12345678901234567890", "1.5", "-0.0", '""', '"a b"', '"\\u00e9"', "true", "[1]"]
)
def test_the_digest_of_children_depends_on_what_the_arguments_are_and_not_on_how_they_are_written(value: str) -> None:
    written, spaced = (Submission("t", text) for text in (f'{{"n":{value}}}', f'{{ "n" : {value} }}'))

    assert digest_of_jobs([written], ()) == digest_of_jobs([spaced], ())
