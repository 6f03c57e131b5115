"""A batch runs many jobs in one call, and each has its own lease and its own ending."""

from __future__ import annotations

import asyncio
import functools
import re
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import faultline
from faultline import Attempt, ConfigError, Fail, Faultline, JobFailed, Retry
from faultline.testing import drain
from tests.waiting import auntil
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io

    from tests.driver import Driver


@dataclass(frozen=True)
class Document:
    number: int
    text: str


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_jobs_run_together_up_to_the_size_and_each_gets_its_result(app: Faultline, kind: str) -> None:
    sizes: list[int] = []

    def measure(texts: list[str]) -> list[int]:
        sizes.append(len(texts))
        assert faultline.current_job() is None
        return [len(text) for text in texts]

    async def ameasure(texts: list[str]) -> list[int]:
        return measure(texts)

    task = app.batch_task(size=4, wait=0.2, name="measure")(ameasure if kind == "async" else measure)
    handles = app.enqueue_many(task.bind("x" * n) for n in range(10))

    assert results(app, handles) == list(range(10))
    assert max(sizes) <= 4
    assert len(sizes) < 10
    assert sum(sizes) == 10


def test_items_are_read_by_their_annotation_and_jobs_are_given(app: Faultline) -> None:
    seen: list[Any] = []

    @app.batch_task(size=10)
    async def index(jobs: list[Attempt], documents: list[Document]) -> None:
        seen.extend((job.id, job.attempt, job.queue, document) for job, document in zip(jobs, documents, strict=True))

    handles = [index.enqueue(Document(n, "text")) for n in range(3)]
    assert results(app, handles) == [None] * 3

    assert sorted(seen, key=str) == sorted(
        [(handle.id, 1, "default", Document(n, "text")) for n, handle in enumerate(handles)], key=str
    )


def test_results_follow_the_annotation_whatever_else_is_in_the_list(app: Faultline) -> None:
    @app.batch_task(size=3, wait=0.1, max_attempts=1)
    async def index(documents: list[Document]) -> list[Document | ValueError | Fail]:
        other: dict[int, ValueError | Fail] = {1: ValueError("odd"), 2: Fail("never")}
        return [other.get(document.number, document) for document in documents]

    found = results(app, [index.enqueue(Document(n, "text")) for n in range(3)])

    assert found[0] == Document(0, "text")
    assert "ValueError: odd" in str(found[1])
    assert str(found[2]).endswith("never")


def test_each_job_may_have_its_own_outcome(app: Faultline) -> None:
    tries: list[str] = []

    @app.batch_task(size=10, wait=0.1, max_attempts=2, backoff=lambda _: 0)
    async def judge(words: list[str]) -> list[Any]:
        tries.extend(words)
        return [
            ValueError("bad word") if word == "bad" else Retry(0) if word == "later" and tries.count(word) < 2 else word
            for word in words
        ]

    good, bad, later = results(app, [judge.enqueue(word) for word in ("good", "bad", "later")])

    assert (good, later) == ("good", "later")
    assert isinstance(bad, JobFailed)
    assert "ValueError: bad word" in str(bad)
    assert sorted(tries) == ["bad", "bad", "good", "later", "later"]


@pytest.mark.parametrize("kind", ["async", "blocking"])
@pytest.mark.parametrize("error", [ValueError("the service is away"), SystemExit("the service is away")])
def test_what_it_raises_is_raised_for_all(app: Faultline, kind: str, error: BaseException) -> None:
    def raises(items: list[int]) -> None:
        raise error

    async def araises(items: list[int]) -> None:
        raise error

    task = app.batch_task(size=5, max_attempts=1, name="raises")(araises if kind == "async" else raises)
    found = results(app, [task.enqueue(n) for n in range(5)])

    assert all(isinstance(one, JobFailed) and "the service is away" in str(one) for one in found)


@pytest.mark.parametrize("returned", [[1], "ab", {1: 2}])
def test_results_that_do_not_fit_the_jobs_fail_them(app: Faultline, returned: Any) -> None:
    @app.batch_task(size=2, wait=5, max_attempts=1)
    async def wrong(items: list[int]) -> Any:
        return returned

    found = results(app, [wrong.enqueue(n) for n in range(2)])

    assert all("a batch of 2 jobs returned" in str(one) and "one result for each" in str(one) for one in found)


def test_a_lost_lease_leaves_the_other_jobs_alone(app: Faultline, queue: Driver) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    lost: list[list[bool]] = []

    @app.batch_task(size=3, wait=60)
    async def slow(jobs: list[Attempt], items: list[int]) -> list[int]:
        began.set()
        await go_on.wait()
        lost.append([job.lease_lost for job in jobs])
        return items

    async def story() -> list[Any]:
        handles = [await slow.aenqueue(n) for n in range(3)]
        await began.wait()
        await app.acancel(handles[1].id)
        await auntil(lambda: queue.state(handles[1].id) == "cancelled")
        await asyncio.sleep(1.5)  # until the worker has noticed
        go_on.set()
        found = await asyncio.gather(handles[0].aresult(60), handles[2].aresult(60))
        return [*found, queue.state(handles[1].id)]

    assert work(app, story) == [0, 2, "cancelled"]
    assert sorted(lost[0]) == [False, False, True]


def test_a_call_all_of_whose_jobs_are_cancelled_is_cancelled(app: Faultline) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @app.batch_task(size=2, wait=60)
    async def endless(items: list[int]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def story() -> None:
        handles = [await endless.aenqueue(n) for n in range(2)]
        await began.wait()
        await app.acancel(handles[0].id)
        assert not cancelled.is_set()
        await app.acancel(handles[1].id)
        async with asyncio.timeout(60):
            await cancelled.wait()

    work(app, story)


def test_a_worker_that_stops_cancels_the_call_and_releases_every_job(app: Faultline, queue: Driver) -> None:
    began, cancelled = asyncio.Event(), []

    @app.batch_task(size=2, wait=60)
    async def endless(items: list[int]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    handles = [endless.enqueue(n) for n in range(2)]
    work(app, began.wait, grace_seconds=0.0)

    assert cancelled == [True]
    assert [(queue.state(handle.id), queue.job(handle.id).attempt) for handle in handles] == [("queued", 0)] * 2


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_call_that_takes_too_long_fails_its_jobs(app: Faultline, log: io.StringIO, kind: str) -> None:
    over = threading.Event()

    async def ahangs(items: list[int]) -> None:
        await asyncio.Event().wait()

    def hangs(items: list[int]) -> None:
        over.wait(60)

    task = app.batch_task(size=2, timeout=0.2, max_attempts=1, name="hangs")(ahangs if kind == "async" else hangs)
    found = results(app, [task.enqueue(n) for n in range(2)])
    over.set()

    assert all("timed out after 0.2 s" in str(one) for one in found)
    assert all(f"in {'ahangs' if kind == 'async' else 'hangs'}\n" in str(one) for one in found)
    assert len(logged(log, "thread_abandoned")) == (kind == "blocking")


def test_a_queue_that_runs_few_at_once_does_not_wait_for_more(app: Faultline) -> None:
    @app.batch_task(size=100, wait=3600)
    async def count(items: list[int]) -> list[int]:
        return [len(items)] * len(items)

    assert results(app, [count.enqueue(n) for n in range(2)], queues={"default": 2}) == [2, 2]


def test_a_batch_may_be_called_directly_with_one_item(app: Faultline) -> None:
    @app.batch_task(size=10)
    def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    assert double(21) == 42
    double.enqueue(4)
    assert drain(app).succeeded == 1


def test_functions_that_cannot_be_batches_are_refused(app: Faultline) -> None:
    def three(a: list[int], b: list[int], c: list[int]) -> None: ...
    def no_list(item: int) -> None: ...

    for fn, told in ((three, "a batch takes one list"), (no_list, "must be annotated as a list")):
        with pytest.raises(ConfigError, match=told):
            app.batch_task(size=2)(fn)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="size of a batch is 0"):
        app.batch_task(size=0)


class Doubling:
    async def __call__(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    def blocking(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]


async def scale(by: int, items: list[int]) -> list[int]:
    return [by * item for item in items]


CALLABLES: dict[str, Any] = {
    "an async object": Doubling(),
    "a method": Doubling().blocking,
    "a partial": partial(scale, 2),
    "a partial of an object": partial(Doubling()),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_a_batch_may_be_any_callable_that_a_task_may_be(app: Faultline, kind: str) -> None:
    task: Any = app.batch_task(size=2, name="double", max_attempts=1)(CALLABLES[kind])

    assert results(app, [task.enqueue(n) for n in range(2)]) == [0, 2]


def test_callables_that_cannot_be_batches_are_refused_where_they_are_declared(app: Faultline) -> None:
    @functools.wraps(CALLABLES["an async object"].__call__)
    def around(*items: Any) -> Any:
        return CALLABLES["an async object"](*items)

    def one_by_one(items: list[int]) -> Any:
        yield from items

    for fn, told in ((around, "a decorator that is not async"), (one_by_one, "cannot be a generator")):
        with pytest.raises(ConfigError, match=told):
            app.batch_task(size=2)(fn)
    with pytest.raises(ConfigError, match="has no name"):
        app.batch_task(size=2)(CALLABLES["a partial"])


def test_the_page_runs_as_printed(app: Faultline) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/batches.md").read_text()
    words: dict[str, Any] = {"app": app}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        program = block.replace("app = Faultline()", "").replace("await model.embed(texts)", "[[0.5]] * len(texts)")
        exec(compile(program, "page", "exec"), words)  # noqa: S102 - our own page
    embedded, pushed = app.tasks["embed"].enqueue("a text"), app.tasks["push"].enqueue("a device")

    assert drain(app, concurrency=10).succeeded == 3
    assert embedded.result() == [0.5]
    assert pushed.result() == "sent"
