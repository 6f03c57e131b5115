"""What a program wrote to a stream before it waited is not written again when it goes on: readers see one stream."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Backoff, BlockingJob, Faultline, Job, Restarted, Retry, current_job
from faultline.attempt.streams import COLLECT_SECONDS
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, signals, waits
from tests.waiting import auntil
from tests.worker.working import work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faultline import JobHandle, Step


def told(app: Faultline, handle: JobHandle[Any], *then: Callable[[JobHandle[Any]], Awaitable[Any]]) -> list[Any]:
    """What a reader gets who follows from the beginning, while these are done."""

    async def story() -> list[Any]:
        async def follow() -> list[Any]:
            return [item async for item in handle.stream("s")]

        following = asyncio.ensure_future(follow())
        for one in then:
            await one(handle)
        return await following

    found: list[Any] = work(app, story)
    return found


@KINDS
def test_what_was_written_before_a_wait_is_written_once(app: Faultline, kind: str) -> None:
    @app.step
    def one() -> int:
        return 1

    @task_of(app, kind)
    async def program(job: Job) -> None:
        out = job.stream("s")
        out.write("start")
        await job.do(one)
        out.write("mid")
        await job.sleep(0.05)
        out.write("slept")
        await job.receive("go", int)
        out.write("end")

    handle = program.enqueue()

    assert told(app, handle, waits(app), signals(app, "go", 1)) == ["start", "mid", "slept", "end"]
    assert list(handle.stream("s")) == ["start", "mid", "slept", "end"]


def test_branches_that_wait_and_branches_that_have_ended_write_once(app: Faultline) -> None:
    @app.step
    def one() -> int:
        return 1

    @app.task
    async def program(job: Job) -> None:
        async def ends() -> None:
            await job.do(one)
            job.stream("s").write("ended")

        async def goes_on() -> None:
            job.stream("s").write("begun")
            await job.receive("a", int)
            job.stream("s").write("went on")
            await job.do(one)

        await job.gather(job.branch(ends), job.branch(goes_on), job.receive("b", int))
        await job.sleep(0.05)
        job.stream("s").write("end")

    handle = program.enqueue()
    found = told(app, handle, waits(app), signals(app, "a", 1), signals(app, "b", 1))

    assert sorted(found[:2]) == ["begun", "ended"]
    assert found[2:] == ["went on", "end"]


def test_branches_of_a_blocking_task_write_once(app: Faultline) -> None:
    @app.task
    def program(job: BlockingJob) -> None:
        def ends() -> None:
            job.stream("s").write("ended")

        def goes_on() -> None:
            job.receive("a", int)
            job.stream("s").write("went on")

        job.gather(job.later.branch(ends), job.later.branch(goes_on), job.later.receive("b", int))
        job.sleep(0.05)
        job.stream("s").write("end")

    handle = program.enqueue()

    assert told(app, handle, waits(app), signals(app, "a", 1), signals(app, "b", 1)) == ["ended", "went on", "end"]


def test_the_winner_of_a_race_writes_once(app: Faultline) -> None:
    @app.task
    async def program(job: Job) -> None:
        async def asks() -> None:
            await job.receive("a", int)
            job.stream("s").write("won")

        await job.race(job.branch(asks), job.receive("b", int))
        await job.sleep(0.05)
        job.stream("s").write("end")

    assert told(app, program.enqueue(), waits(app), signals(app, "a", 1)) == ["won", "end"]


def test_a_new_attempt_writes_again_only_what_came_after_the_last_call(app: Faultline) -> None:
    seen: list[Any] = []
    broken = [True]

    @app.step
    async def one() -> int:
        return 1

    @app.task(backoff=lambda _: 0)
    async def program(job: Job) -> Retry | None:
        out = job.stream("s")
        out.write("start")
        await job.do(one)
        out.write(f"after {bool(broken)}")
        if broken:
            await auntil(lambda: len(seen) == 2)
            broken.clear()
            return Retry(after=0)
        return None

    handle = program.enqueue()

    async def follow() -> None:
        async for item in handle.stream("s"):
            seen.append(item)  # noqa: PERF401 - the job looks at it

    work(app, follow)
    assert seen == ["start", "after True", Restarted(kept=1), "after False"]
    assert list(handle.stream("s")) == ["start", "after False"]


def test_a_job_that_made_no_call_in_its_new_attempt_writes_what_it_writes(app: Faultline) -> None:
    @app.step
    async def one() -> int:
        return 1

    @app.task(max_attempts=2, backoff=lambda _: 0)
    async def program(job: Job) -> None:
        job.stream("s").write(f"attempt {job.attempt}")
        if job.attempt == 2:
            raise ValueError("before the call")
        await job.do(one)
        raise ValueError("after the call")

    assert told(app, program.enqueue()) == ["attempt 1"]


def test_a_step_that_runs_again_beside_one_that_has_ended_begins_its_stream_anew(app: Faultline) -> None:
    """What it had written before the other one was on record is not on record by that."""
    tries: list[int] = []
    handles: list[JobHandle[Any]] = []

    @app.step
    async def quick() -> int:
        await auntil(lambda: _written(app, handles[0], "slow"))
        return 1

    @app.step
    async def slow() -> int:
        job = current_job()
        assert isinstance(job, Job)
        out = job.stream("slow")
        tries.append(1)
        out.write("a")
        await auntil(lambda: "1" in calls(app, handles[0]))
        out.write("b")
        if len(tries) == 1:
            raise RuntimeError("stopped")
        return 2

    @app.task(max_attempts=2, backoff=Backoff.fixed(0))
    async def program(job: Job) -> None:
        handles.append(app.handle(job.id))
        await job.gather(job.do(quick), job.do(slow))

    handle = program.enqueue()
    told(app, handle)

    assert list(handle.stream("slow")) == ["a", "b"]


def test_branches_that_write_to_one_stream_are_kept_up_to_their_own_last_call(app: Faultline) -> None:
    @app.step
    def one() -> int:
        return 1

    @app.task(max_attempts=3, backoff=Backoff.fixed(0))
    async def program(job: Job) -> None:
        out = job.stream("s")
        out.write("begun")

        async def behind() -> None:
            out.write("behind 1")
            if job.attempt < 3:
                await auntil(lambda: len(calls(app, app.handle(job.id))) == 2)
                out.write("behind 2")
                await auntil(lambda: len(_written(app, app.handle(job.id), "s")) >= 6)
                raise RuntimeError("stopped")

        async def ahead() -> None:
            out.write("ahead 1")
            await job.do(one)
            out.write("ahead 2")
            await job.do(one)
            out.write("ahead 3")

        await job.gather(job.branch(behind), job.branch(ahead))
        out.write("end")

    handle = program.enqueue()

    found = told(app, handle)
    whole: list[Any] = list(handle.stream("s"))
    assert [item for item in whole if item.startswith("ahead")] == ["ahead 1", "ahead 2", "ahead 3"]
    assert sorted(whole) == ["ahead 1", "ahead 2", "ahead 3", "begun", "behind 1", "end"]
    assert (whole[0], whole[-1]) == ("begun", "end")
    kept: list[Any] = []
    for item in found:
        kept = kept[: item.kept] if isinstance(item, Restarted) else [*kept, item]
    assert kept == whole


def _written(app: Faultline, handle: JobHandle[Any], name: str) -> list[Any]:
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        rows = connection.execute(
            "select jsonb_array_elements(chunk) from faultline.streams where job_id = %s and name = %s", (handle.id, name)
        )
        return [row[0] for row in rows]


def _says(app: Faultline) -> Step[[str], int]:
    @app.step
    async def says(what: str) -> int:
        job = current_job()
        assert isinstance(job, Job)
        job.stream("s").write(what)
        return 1

    return says


def test_a_retry_keeps_what_steps_wrote_that_it_keeps(app: Faultline) -> None:
    """The step came after the call that failed the job: the program may make it again, and does."""
    is_broken = True
    says = _says(app)

    @app.task(max_attempts=1)
    def child() -> None:
        if is_broken:
            raise ValueError("broken")

    @app.task(max_attempts=1)
    async def program(job: Job) -> None:
        error = None
        try:
            await job.call(child)
        except Exception as caught:  # noqa: BLE001 - raised at the end
            error = caught
        await job.do(says, "said")
        if error is not None:
            raise error
        job.stream("s").write("end")

    handle = program.enqueue()
    assert told(app, handle) == ["said"]
    is_broken = False
    handle.retry()

    told(app, handle)
    assert list(handle.stream("s")) == ["said", "end"]


def test_a_program_and_its_steps_write_in_their_order_also_while_an_earlier_part_is_sent(app: Faultline) -> None:
    says = _says(app)
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(
            "create function slow() returns trigger language plpgsql as $$begin perform pg_sleep(0.5); return new; end$$"
        )
        connection.execute("create trigger slow before insert on faultline.streams for each row execute function slow()")

    @app.task
    async def program(job: Job) -> None:
        out = job.stream("s")
        out.write("1")
        await asyncio.sleep(2 * COLLECT_SECONDS)
        out.write("2")
        call = job.do(says, "4")
        out.write("3")
        await call
        out.write("5")

    assert told(app, program.enqueue()) == ["1", "2", "3", "4", "5"]


def test_what_a_step_wrote_goes_when_it_runs_again_and_writes_nothing(app: Faultline) -> None:
    @app.step
    async def once() -> int:
        job = current_job()
        assert isinstance(job, Job)
        if job.attempt == 1:
            job.stream("s").write("stale")
            raise RuntimeError("stopped")
        return 1

    @app.task(max_attempts=2, backoff=Backoff.fixed(0))
    async def program(job: Job) -> None:
        await job.do(once)
        job.stream("s").write("end")

    handle = program.enqueue()
    told(app, handle)

    assert list(handle.stream("s")) == ["end"]


@KINDS
@pytest.mark.parametrize("then", ["waits", "ends"])
def test_what_stands_before_a_wait_or_the_end_is_written_although_another_session_holds_the_job(
    app: Faultline, kind: str, then: str
) -> None:
    """For longer than a write waits for a lock: the attempt ends when its stream is written."""
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(f'alter database "{connection.info.dbname}" set lock_timeout = 300'.encode())
    holder = psycopg.connect(app.dsn)

    @task_of(app, kind)
    async def program(job: Job) -> None:
        out = job.stream("s")
        if job.fencing_token == 1:
            holder.execute("select from faultline.open_jobs where id = %s for update", (job.id,))
            threading.Timer(1.5, holder.close).start()
        out.write("first")
        if then == "waits":
            await job.sleep(0.1)
            out.write("last")

    handle = program.enqueue()

    assert told(app, handle) == ["first", "last"][: 1 + (then == "waits")]
