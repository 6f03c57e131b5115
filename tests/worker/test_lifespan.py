"""What a lifespan opens is there for every job; the job that runs is known to code that is not given it, and to logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

import faultline
from faultline import ConfigError, Faultline, Job
from faultline.testing import drain
from faultline.worker.run import lifespan
from tests.worker.working import logged, results, work

if TYPE_CHECKING:
    import io
    from collections.abc import AsyncIterator, Iterator

    from tests.driver import Driver


def test_the_current_job_is_known_in_every_branch_and_nowhere_else(app: Faultline) -> None:
    seen: dict[str, Any] = {}

    def here() -> Any:
        job = faultline.current_job()
        return job and (job.id, job.task, job.attempt, job.queue)

    @app.task
    async def branching() -> None:
        seen["task"] = here()
        seen["branch"] = await asyncio.create_task(asyncio.sleep(0, here()))
        seen["to_thread"] = await asyncio.to_thread(here)

    @app.task
    def blocking() -> None:
        seen["thread"] = here()
        thread = threading.Thread(target=copy_context().run, args=(lambda: seen.update(inner=here()),))
        thread.start()
        thread.join()

    @app.task(timeout=60)
    async def given(job: Job) -> bool:
        return faultline.current_job() is job

    @app.task(timeout=60)
    async def late() -> bool:
        job = faultline.current_job()
        return job is not None and job.deadline is not None and not job.lease_lost

    assert here() is None
    first, second = branching.enqueue(), blocking.enqueue()
    others = [given.enqueue(), late.enqueue()]
    drain(app)
    mine, other = (first.id, "branching", 1, "default"), (second.id, "blocking", 1, "default")
    assert seen == {"task": mine, "branch": mine, "to_thread": mine, "thread": other, "inner": other}
    assert [handle.result() for handle in others] == [True, True]
    assert here() is None


def test_a_branch_that_outlives_its_job_does_not_see_the_next(app: Faultline) -> None:
    seen: list[Any] = []
    left: list[asyncio.Task[None]] = []
    second_runs, looked = asyncio.Event(), asyncio.Event()

    async def outlive() -> None:
        await second_runs.wait()
        job = faultline.current_job()
        seen.append(job and job.task)
        looked.set()

    @app.task
    async def first() -> None:
        left.append(asyncio.create_task(outlive()))

    @app.task
    async def second() -> None:
        second_runs.set()
        await looked.wait()

    first.enqueue()
    second.enqueue()
    drain(app)

    assert seen == ["first"]


def test_log_records_say_which_job_they_are_about(app: Faultline, log: io.StringIO) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment, method-assign]
    handler.addFilter(faultline.JobFilter())
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    @app.task
    async def on_loop() -> None:
        logger.info("from the loop")

    @app.task
    def blocking() -> None:
        logger.info("from a thread", extra={"task": "mine"})
        logging.getLogger("faultline.shop").warning("as a line of JSON")

    first, second = on_loop.enqueue(), blocking.enqueue()
    drain(app)
    logger.info("outside")
    logger.removeHandler(handler)

    found = [tuple(vars(record)[name] for name in ("job_id", "task", "attempt")) for record in records]
    assert found == [(str(first.id), "on_loop", 1), (str(second.id), "mine", 1), (None, None, None)]
    (line,) = logged(log, "log")
    assert (line["job_id"], line["task"], line["attempt"]) == (str(second.id), "blocking", 1)


def test_a_lifespan_is_open_while_jobs_run_and_closed_after_the_last(app: Faultline) -> None:
    order: list[str] = []

    @app.lifespan
    async def pool() -> AsyncIterator[dict[str, Any]]:
        task = asyncio.current_task()
        order.append("pool opens")
        yield {"pool": "open"}
        order.append(f"pool closes in the same task: {asyncio.current_task() is task}")

    @app.lifespan
    @contextlib.contextmanager
    def model() -> Iterator[dict[str, Any]]:
        thread = threading.current_thread()
        order.append("model opens")
        yield {"model": thread.name}
        order.append(f"model closes in the same thread: {threading.current_thread() is thread}")

    @app.task
    async def given(job: Job) -> str:
        order.append("job")
        return str(job.state["pool"])

    @app.task
    def looked_up() -> bool:
        job = faultline.current_job()
        return job is not None and job.state["model"].startswith("faultline-task") and job.state["pool"] == "open"

    first, second = given.enqueue(), looked_up.enqueue()
    drain(app)

    assert (first.result(), second.result()) == ("open", True)
    assert order == [
        *("pool opens", "model opens", "job"),
        *("model closes in the same thread: True", "pool closes in the same task: True"),
    ]


def test_a_worker_whose_lifespan_fails_to_open_claims_nothing(app: Faultline, queue: Driver) -> None:
    closed: list[str] = []

    @app.lifespan
    async def first() -> AsyncIterator[None]:
        yield
        closed.append("first")

    @app.lifespan
    def second() -> Iterator[None]:
        if app.tasks:
            raise ValueError("no model")
        yield

    @app.task
    async def plain() -> None: ...

    handle = plain.enqueue()
    with pytest.raises(ValueError, match="no model"):
        work(app, lambda: asyncio.sleep(0))

    assert queue.state(handle.id) == "queued"
    assert queue.job(handle.id).fencing_token == 0


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_worker_may_be_stopped_while_a_lifespan_opens(app: Faultline, kind: str) -> None:
    let_go = threading.Event()

    async def aslow() -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    def slow() -> Iterator[None]:
        let_go.wait(60)
        yield

    app.lifespan(aslow if kind == "async" else slow)

    async def main() -> None:
        worker = app.worker({"default": 1})
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0.1)
        worker.stop()
        async with asyncio.timeout(20):
            await running

    try:
        asyncio.run(main())
    finally:
        let_go.set()


@pytest.mark.parametrize("how", ["raise", "hang"])
def test_a_lifespan_that_cannot_close_is_logged_and_the_worker_ends(
    app: Faultline, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(lifespan, "CLOSE_SECONDS", 0.2)

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        yield
        if how == "raise":
            raise ValueError("still in use")
        await asyncio.Event().wait()

    @app.task
    async def plain() -> int:
        return 1

    assert results(app, [plain.enqueue()]) == [1]
    (line,) = logged(log, "lifespan_failed")
    assert (
        line["error"]
        == {
            "raise": "closing failed: ValueError: still in use",
            "hang": "closing took longer than 0.2 s",
        }[how]
    )


@pytest.mark.parametrize(
    ("second", "told"), [({"pool": 2}, "yields pool, which another lifespan yields"), ([1], "yields list; yield a dict")]
)
def test_a_state_that_cannot_be_is_refused_at_the_start(app: Faultline, second: Any, told: str) -> None:
    @app.lifespan
    async def one() -> AsyncIterator[dict[str, int]]:
        yield {"pool": 1}

    @app.lifespan
    async def other() -> AsyncIterator[Any]:
        yield second

    with pytest.raises(ConfigError, match=told):
        work(app, lambda: asyncio.sleep(0))


def test_hooks_that_cannot_be_called_are_refused_where_they_are_written(app: Faultline) -> None:
    async def nothing() -> None: ...

    def generator(a: int) -> Iterator[None]:
        yield

    for register, fn, told in (
        (app.middleware, nothing, "called with \\(job, call\\)"),
        (app.on_success, nothing, "called with \\(job\\)"),
        (app.on_failure, len, "called with \\(job, error\\)"),
        (app.lifespan, nothing, "a generator that yields once"),
        (app.lifespan, generator, "called without arguments"),
        (app.on_start, 7, "must be a function"),
    ):
        with pytest.raises(ConfigError, match=told):
            register(fn)  # type: ignore[type-var]

    async def enqueued(handle: Any, submission: Any) -> None: ...

    with pytest.raises(ConfigError, match="cannot await it"):
        app.on_enqueue(enqueued)  # type: ignore[type-var]


def test_without_hooks_nothing_is_wrapped_or_noted(app: Faultline) -> None:
    @app.task
    async def plain() -> None: ...

    async def main() -> None:
        async with app.worker({"default": 1}) as worker:
            executor: Any = worker._executor  # noqa: SLF001
            assert executor._tasks is app.tasks  # noqa: SLF001
            assert executor.observers is executor._completer.observers is None  # noqa: SLF001

    asyncio.run(main())
