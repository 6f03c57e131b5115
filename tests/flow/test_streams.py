"""Streams: what a job writes while it runs, read item by item."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, Faultline, Job, JobNotFound, JobRejected, LimitReached, Restarted, Retry, StaleLease
from faultline.attempt.streams import COLLECT_SECONDS
from tests.waiting import auntil
from tests.worker.working import PATIENCE, results, work

if TYPE_CHECKING:
    from faultline import JobHandle


async def read(handle: JobHandle[Any], name: str = "tokens") -> list[Any]:
    return [item async for item in handle.stream(name)]


def test_a_reader_gets_every_item_in_its_order_and_ends_with_the_job(app: Faultline) -> None:
    @app.task
    async def think(job: Job) -> str:
        for word in ("to", "be", {"or": None}):
            job.stream("tokens").write(word)
            await asyncio.sleep(0)
        return "done"

    handle = think.enqueue()

    assert work(app, lambda: read(handle)) == ["to", "be", {"or": None}]
    assert list(handle.stream("tokens")) == ["to", "be", {"or": None}]
    assert list(handle.stream("others")) == []


def test_items_are_seen_while_the_job_runs(app: Faultline) -> None:
    seen: list[Any] = []

    @app.task
    async def think(job: Job) -> None:
        stream = job.stream("tokens")
        stream.write(1)
        await auntil(lambda: seen == [1])
        stream.write(2)
        await auntil(lambda: seen == [1, 2])

    handle = think.enqueue()

    async def follow() -> None:
        async for item in handle.stream("tokens"):
            seen.append(item)  # noqa: PERF401 - the job looks at it

    work(app, follow)
    assert seen == [1, 2]


def test_a_blocking_task_streams_too(app: Faultline) -> None:
    seen = threading.Event()

    @app.task
    def think(job: BlockingJob) -> None:
        job.stream("tokens").write(1)
        assert seen.wait(PATIENCE)
        job.stream("tokens").write(2)

    handle = think.enqueue()

    def follow() -> list[Any]:
        found = []
        for item in handle.stream("tokens"):
            found.append(item)
            seen.set()
        return found

    assert work(app, lambda: asyncio.to_thread(follow)) == [1, 2]


def test_a_new_attempt_tells_the_reader_to_begin_anew(app: Faultline) -> None:
    seen: list[Any] = []

    @app.task
    async def think(job: Job) -> Retry | str:
        job.stream("tokens").write(f"attempt {job.attempt}")
        if job.attempt == 1:
            await auntil(lambda: seen == ["attempt 1"])
            return Retry(after=0)
        return "done"

    handle = think.enqueue()

    async def follow() -> None:
        async for item in handle.stream("tokens"):
            seen.append(item)  # noqa: PERF401 - the job looks at it

    work(app, follow)
    assert seen == ["attempt 1", Restarted(kept=0), "attempt 2"]
    assert list(handle.stream("tokens")) == ["attempt 2"]


def test_what_is_written_around_and_in_a_transaction_keeps_its_order(app: Faultline) -> None:
    @app.task
    async def think(job: Job) -> None:
        stream = job.stream("tokens")
        stream.write(1)
        async with job.transaction() as tx:
            stream.write(2)
            await tx.execute("select 1")
        stream.write(3)
        async with job.transaction() as tx:
            stream.write(4)
            tx.complete("done")

    handle = think.enqueue()

    assert results(app, [handle]) == ["done"]
    assert list(handle.stream("tokens")) == [1, 2, 3, 4]


def test_a_stream_that_is_too_long_says_what_to_do(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def think(job: Job) -> str:
        stream = job.stream("tokens")
        for _ in range(16):
            stream.write("x" * 1024 * 1024)
        return "never"

    handle = think.enqueue()

    [error] = results(app, [handle])
    assert "longer than 16 MiB; write less" in str(error)
    assert issubclass(LimitReached, Exception)


def test_an_item_that_is_not_json_is_refused_where_it_is_written(app: Faultline) -> None:
    @app.task(max_attempts=1)
    async def think(job: Job) -> str:
        with pytest.raises(JobRejected, match="item of stream tokens"):
            job.stream("tokens").write(object())
        with pytest.raises(JobRejected, match="1 to 200 characters"):
            job.stream("")
        job.stream("tokens").write("fine")
        return "done"

    handle = think.enqueue()

    assert results(app, [handle]) == ["done"]
    assert list(handle.stream("tokens")) == ["fine"]


def test_a_job_that_does_not_exist_has_no_streams(app: Faultline) -> None:
    with pytest.raises(JobNotFound):
        list(app.handle("0198c2e4-5d3a-7b11-9f60-2a54c0de7f01").stream("tokens"))


def test_an_attempt_that_is_over_flushes_its_streams_no_more(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    flush = Job.flush_streams

    async def counted(job: Job) -> None:
        flushed.append("by a task")
        await flush(job)

    monkeypatch.setattr(Job, "flush_streams", counted)

    @app.task
    async def think(job: Job) -> None:
        job.stream("tokens").write(1)

    handle = think.enqueue()

    async def flushed_later() -> list[str]:
        await read(handle)
        before = len(flushed)
        await asyncio.sleep(3 * COLLECT_SECONDS)
        return flushed[before:]

    assert work(app, flushed_later) == []


def test_an_attempt_is_over_also_if_its_last_flush_is_cut_short(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    async def cut_short(job: Job) -> None:
        jobs.append(job)
        raise asyncio.CancelledError

    monkeypatch.setattr(Job, "flush_streams", cut_short)

    @app.task(max_attempts=1)
    async def think(job: Job) -> None:
        job.stream("tokens").write(1)

    think.enqueue()
    work(app, lambda: auntil(lambda: jobs))

    async def write() -> None:
        await jobs[0].progress({"n": 1})

    with pytest.raises(StaleLease, match="attempt_ended"):
        asyncio.run(write())


def test_what_is_written_while_earlier_items_are_sent_is_sent_too(app: Faultline, monkeypatch: pytest.MonkeyPatch) -> None:
    write, begun = Job._write_streams, asyncio.Event()  # noqa: SLF001

    async def slowly(job: Job) -> None:
        begun.set()
        await asyncio.sleep(0.1)
        await write(job)

    monkeypatch.setattr(Job, "_write_streams", slowly)

    @app.task
    async def think(job: Job) -> None:
        job.stream("tokens").write("first")
        await begun.wait()
        job.stream("tokens").write("last")

    handle = think.enqueue()

    assert work(app, lambda: read(handle)) == ["first", "last"]


def test_what_a_blocking_task_writes_while_earlier_items_are_sent_is_sent_too(
    app: Faultline, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, begun = BlockingJob._write_streams, threading.Event()  # noqa: SLF001

    def slowly(job: BlockingJob) -> None:
        begun.set()
        time.sleep(0.1)
        write(job)

    monkeypatch.setattr(BlockingJob, "_write_streams", slowly)

    @app.task
    def think(job: BlockingJob) -> None:
        job.stream("tokens").write("first")
        begun.wait(PATIENCE)
        job.stream("tokens").write("last")

    handle = think.enqueue()

    assert work(app, lambda: read(handle)) == ["first", "last"]


def test_who_reads_a_stream_with_for_on_an_event_loop_is_warned(app: Faultline) -> None:
    @app.task
    def says() -> None: ...

    handle = says.enqueue()

    async def reads() -> None:
        with pytest.warns(RuntimeWarning, match="Write `async for`"):
            assert list(handle.stream("s")) == []

    app.cancel(handle.id)
    asyncio.run(reads())
