"""A slip that everybody makes once gets words that say what happened and what to write instead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, ConfigError, Faultline, Job, JobRejected
from tests.flow.running import calls, ended

if TYPE_CHECKING:
    from faultline import JobHandle

Slip = Callable[[Any, dict[str, Any]], Any]


def parts(app: Faultline) -> dict[str, Any]:
    """A step, a task and a plain function to mistake for each other."""

    @app.step
    def step(n: int = 1) -> int:
        return n

    @app.task
    async def child(n: int = 1) -> int:
        return n

    def plain(n: int = 1) -> int:
        return n

    async def coroutine() -> int:
        return 1

    return {"step": step, "child": child, "plain": plain, "coroutine": coroutine}


#: Each slip in an async program and in a blocking one, and what is said of it.
IN_BOTH: dict[str, tuple[Slip, str]] = {
    "a plain function as a step": (
        lambda job, it: job.do(it["plain"], 1),
        "job.do takes a step, and plain is a plain function; put @app.step above it",
    ),
    "a task as a step": (
        lambda job, it: job.do(it["child"], 1),
        "job.do takes a step, and child is a task; run it as a child with job.call(child, ...)",
    ),
    "a name as a step": (lambda job, _: job.do("step"), "job.do takes a step, as @app.step makes it, not 'step'"),
    "a step that was called": (
        lambda job, it: job.do(it["coroutine"]()),
        "job.do takes a step, and coroutine was called here; pass the function and its arguments apart: job.do(coroutine,",
    ),
    "a step as a task": (
        lambda job, it: job.call(it["step"], 1),
        "job.call takes a task, and step is a step; run it with job.do(step, ...)",
    ),
    "a plain function as a task": (
        lambda job, it: job.call(it["plain"], 1),
        "job.call takes a task, and plain is a plain function; put @app.task above it",
    ),
    "a step as a detached job": (lambda job, it: job.enqueue(it["step"]), "job.enqueue takes a task, and step is a step"),
    "a step in a map": (lambda job, it: job.map(it["step"], [1]), "job.map takes a task, and step is a step"),
    "a dict of items": (
        lambda job, it: job.map(it["child"], {"a": 1}),
        "job.map takes a list of items, and got a dict; pass list(items.values()) or list(items.items())",
    ),
    "a text of items": (
        lambda job, it: job.map(it["child"], "abc"),
        "job.map takes a list of items, and got a str; for a child with the whole of it, use job.call",
    ),
    "a set of items": (
        lambda job, it: job.map(it["child"], {1, 2}),
        "job.map takes a list of items, and got a set, which may have another order in the next run; pass sorted(items)",
    ),
    "no items": (lambda job, it: job.map(it["child"], 3), "job.map takes a list of items, not 3"),
    "a list of calls": (lambda job, _: job.gather([1, 2]), "got a list; write job.gather(*calls)"),
    "text as a duration": (lambda job, _: job.sleep("5"), "sleep must be a number of seconds or a timedelta, not '5'"),
    "no duration": (lambda job, _: job.sleep(None), "sleep must be a number of seconds or a timedelta, not None"),
    "a name of a type": (
        lambda job, _: job.receive("go", "int"),
        "job.receive('go', type) takes the type that the payload is read as, such as str or a dataclass, not 'int'",
    ),
    "a type as a name": (lambda job, _: job.receive(int), "the name of a signal must be text, not type: <class 'int'>"),
    "a timeout as a type": (
        lambda job, _: job.receive("go", timedelta(days=3)),
        "job.receive('go', type) takes the type that the payload is read as",
    ),
}

IN_ASYNC: dict[str, tuple[Slip, str]] = {
    "a result beside calls": (
        lambda job, it: job.gather(1, job.do(it["step"])),
        "job.gather takes calls of this job, as job.do(...) or job.branch(...) make them, not int; leave out the await",
    ),
    "a coroutine beside calls": (
        lambda job, it: job.gather(it["coroutine"](), job.do(it["step"])),
        "job.gather takes calls of this job, and got a coroutine of coroutine; write job.branch(coroutine, ...)",
    ),
    "a condition": (lambda job, _: not job.patched("new"), "job.patched('new') was not awaited"),
    "a loop": (lambda job, it: list(job.map(it["child"], [1])), "call 1 (child) was not awaited"),
    "a comparison": (lambda job, it: job.do(it["step"]) == 1, "call 1 (step) was not awaited"),
    "an order": (lambda job, it: job.do(it["step"]) > 1, "call 1 (step) was not awaited"),
    "a length": (lambda job, it: len(job.map(it["child"], [1])), "call 1 (child) was not awaited"),
    "an item": (lambda job, it: job.map(it["child"], [1])[0], "call 1 (child) was not awaited"),
    "an attribute": (
        lambda job, _: job.receive("go", dict).ok,
        "call 1 (go) was not awaited, so it has no ok; write `await` before it",
    ),
    "an argument": (lambda job, it: job.do(it["step"], job.do(it["step"])), "call 1 (step) was not awaited"),
    "an argument of a child": (lambda job, it: job.call(it["child"], n=job.do(it["step"])), "call 1 (step) was not awaited"),
}


#: What is a block of a job, and what it is called.
BLOCKS: dict[str, Callable[[Any], Any]] = {
    "job.saga()": lambda job: job.saga(),
    "job.transaction()": lambda job: job.transaction(),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_an_async_job_that_lacks_its_async_says_so(app: Faultline, block: str) -> None:
    @app.task(max_attempts=1)
    async def wrong(job: Job) -> None:
        with BLOCKS[block](job):
            pass

    @app.task(max_attempts=1)
    async def awaited(job: Job) -> None:
        await BLOCKS[block](job)

    for task in (wrong, awaited):
        handle = task.enqueue()
        error = ended(app, handle)

        assert (
            f"ConfigError: job {handle.id}: {block} needs `async with` in an async task; write: async with {block}"
            in str(error)
        )


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_a_blocking_job_that_has_an_async_says_so(app: Faultline, block: str) -> None:
    async def enter(job: BlockingJob) -> None:
        async with BLOCKS[block](job):
            pass

    @app.task(max_attempts=1)
    def wrong(job: BlockingJob) -> None:
        asyncio.run(enter(job))

    handle = wrong.enqueue()
    error = ended(app, handle)

    assert (
        f"ConfigError: job {handle.id}: {block} needs `with`, without async, in a blocking task; write: with {block}"
        in str(error)
    )


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_was_not_opened_says_so(app: Faultline, block: str) -> None:
    @app.task(max_attempts=1)
    async def in_async(job: Job) -> None:
        await BLOCKS[block](job).execute("select 1")

    @app.task(max_attempts=1)
    def in_blocking(job: BlockingJob) -> None:
        BLOCKS[block](job).execute("select 1")

    for task, word in ((in_async, "async with"), (in_blocking, "with")):
        error = str(ended(app, task.enqueue()))

        assert f"{block} is opened by `{word}` before it is used; write: {word} {block} as opened" in error


def test_an_undo_that_cannot_be_called_is_refused_before_there_is_anything_to_undo(app: Faultline) -> None:
    @app.step
    def book(hotel: str) -> int:
        return len(hotel)

    @app.step
    def cancel(booking: int) -> None: ...

    @app.task(max_attempts=1)
    async def program(job: Job) -> None:
        async with job.saga() as saga:
            do: Any = saga.do
            await do(book, "Astoria", undo=cancel)

    handle = program.enqueue()

    assert (
        "saga.do(undo=cancel): an undo is called with the result and then the same arguments, and cancel(booking: 'int') ->"
        " 'None' does not take those: too many positional arguments"
    ) in str(ended(app, handle))
    assert calls(app, handle) == {}


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_cursor_of_a_job_that_is_entered_the_wrong_way_says_so(app: Faultline, kind: str) -> None:
    @app.task(max_attempts=1)
    async def in_async(job: Job) -> None:
        async with job.transaction() as tx:
            with tx.cursor():  # type: ignore[attr-defined]
                pass

    async def enter(cursor: Any) -> None:
        async with cursor:
            pass

    @app.task(max_attempts=1)
    def in_blocking(job: BlockingJob) -> None:
        with job.transaction() as tx:
            asyncio.run(enter(tx.cursor()))

    wrong, said = {
        "async": (in_async, "ConfigError: tx.cursor() needs `async with` in an async task; write: async with tx.cursor()"),
        "blocking": (
            in_blocking,
            "ConfigError: tx.cursor() needs `with`, without async, in a blocking task; write: with tx.",
        ),
    }[kind]

    assert said in str(ended(app, wrong.enqueue()))


@pytest.mark.parametrize("slip", [*IN_BOTH, *IN_ASYNC])
def test_a_slip_in_an_async_program_says_what_to_write_instead(app: Faultline, slip: str) -> None:
    make, said = {**IN_BOTH, **IN_ASYNC}[slip]
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        return await make(job, given)

    handle = program.enqueue()

    assert said in str(ended(app, handle))
    assert calls(app, handle) == {}


@pytest.mark.parametrize("slip", IN_BOTH)
def test_a_slip_in_a_blocking_program_says_what_to_write_instead(app: Faultline, slip: str) -> None:
    make, said = IN_BOTH[slip]
    given = parts(app)

    @app.task(max_attempts=1)
    def program(job: BlockingJob) -> Any:
        return make(job, given)

    assert said in str(ended(app, program.enqueue()))


def test_a_result_beside_calls_of_a_blocking_program_is_told_of_later(app: Faultline) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    def program(job: BlockingJob) -> Any:
        return job.gather(job.do(given["step"]), job.later.do(given["step"]))

    said = "job.gather takes calls of this job, as job.later.do(...) or job.later.branch(...) make them, not int"
    assert said in str(ended(app, program.enqueue()))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda job, it: job.do(it["step"]), "call 1 (step) was made and never awaited"),
        (lambda job, _: job.patched("new"), "job.patched('new') was made and never awaited"),
        (lambda job, it: job.gather(job.do(it["step"])), "call 1 (step) was made and never awaited"),
    ],
    ids=["do", "patched", "gather"],
)
def test_a_call_that_nobody_awaits_is_named_at_the_end_of_the_run(app: Faultline, made: Slip, said: str) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        made(job, given)
        return "done"

    assert said in str(ended(app, program.enqueue()))


def test_a_change_named_as_a_call_is_numbered_stands_beside_it(app: Faultline) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        job.patched("1")
        await job.do(given["step"])
        return "done"

    assert "job.patched('1') was made and never awaited" in str(ended(app, program.enqueue()))


def test_a_call_that_is_returned_without_await_is_named(app: Faultline) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        return job.do(given["step"])

    assert "the task returned call 1 (step), which was not awaited; write `return await ...`" in str(
        ended(app, program.enqueue())
    )


def test_a_call_that_is_awaited_twice_says_to_keep_its_result(app: Faultline) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        call = job.do(given["step"])
        return [await call, await call]

    assert "call 1 (step) was awaited before; keep its result in a variable" in str(ended(app, program.enqueue()))


def test_a_saga_takes_steps_to_do_and_to_undo(app: Faultline) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job, odd: str) -> Any:
        async with job.saga() as saga:
            if odd == "undo":
                return await saga.do(given["step"], 1, undo=given["plain"])
            return await saga.do(given["plain"], 1)

    assert "saga.do takes a step, and plain is a plain function" in str(ended(app, program.enqueue("do")))
    assert "saga.do(undo=...) takes a step, and plain is a plain function" in str(ended(app, program.enqueue("undo")))


def test_results_take_a_task_and_a_list(app: Faultline) -> None:
    given = parts(app)

    @app.task(max_attempts=1)
    async def program(job: Job, odd: str) -> Any:
        if odd == "task":
            return [one async for one in job.results(given["step"], [1])]
        return [one async for one in job.results(given["child"], {1: 1})]

    assert "job.results takes a task, and step is a step" in str(ended(app, program.enqueue("task")))
    assert "job.results takes a list of items, and got a dict" in str(ended(app, program.enqueue("items")))


def test_a_graph_takes_tasks_and_what_was_added_to_it(app: Faultline) -> None:
    given = parts(app)
    flow = app.flow("odd")
    first = flow.add(given["child"], 1)

    def refused(said: str, error: type[Exception], *args: Any, **words: Any) -> None:
        with pytest.raises(error, match=re.escape(said)):
            flow.add(*args, **words)

    refused("flow.add takes a task, and step is a step; make it a task with @app.task", ConfigError, given["step"], 1)
    refused("flow.add takes a task, and plain is a plain function; put @app.task above it", ConfigError, given["plain"])
    refused(
        "after=[...] takes jobs of this flow, as flow.add(...) returned them, not 'child'", JobRejected,
        given["child"], 1, after=["child"],
    )  # fmt: skip
    refused("after= takes a list; write after=[<FlowJob child>]", JobRejected, given["child"], 1, after=first)
    refused("after= takes a list; write after=['child']", JobRejected, given["child"], 1, after="child")
    other = app.flow("other").add(given["child"], 1)
    refused("comes after child, which was not added to flow odd before", JobRejected, given["child"], 1, after=[other])
    handle: JobHandle[Any] = flow.enqueue()
    assert len(handle.jobs) == 1  # type: ignore[attr-defined]
