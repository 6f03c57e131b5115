"""Calls of `aenqueue` at the same time share statements, and nothing else: no errors, cancellations or time limits."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from faultline import DatabaseUnavailable, Faultline, JobRejected, OutcomeUnknown
from faultline.app.concurrent_enqueues import ConcurrentEnqueues
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.core.model import Enqueued, Submission
from faultline.testing import CutAt, adrain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine


def played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def play(*args: Any, **words: Any) -> None:
        asyncio.run(test(*args, **words))

    return play


class Sent(Faults):
    wanted = True

    def __init__(self) -> None:
        self.enqueues = 0

    def reach(self, point: str) -> None:
        self.enqueues += point == "before_enqueue_sent"


def greeting(app: Faultline) -> Any:
    @app.task
    async def greet(name: Any) -> Any:
        return name

    return greet


@played
async def test_calls_at_the_same_time_share_statements_and_get_their_own_answers(dsn: str) -> None:
    sent = Sent()
    async with Faultline(dsn, host=Host(faults=sent)) as app:
        greet = greeting(app)

        handles = await asyncio.gather(*(greet.aenqueue(n) for n in range(32)))

        assert sent.enqueues == 2  # the first alone, and all that came meanwhile
        assert [(await handle.ajob()).args["name"] for handle in handles] == list(range(32))
        assert all(handle.created for handle in handles)
        assert len({handle.id for handle in handles}) == 32


@played
async def test_a_single_caller_waits_for_nobody(dsn: str) -> None:
    sent = Sent()
    async with Faultline(dsn, host=Host(faults=sent)) as app:
        greet = greeting(app)

        for n in range(3):
            await greet.aenqueue(n)

        assert sent.enqueues == 3
        assert len(asyncio.all_tasks()) == 1


@played
async def test_an_invalid_job_fails_alone(dsn: str) -> None:
    async with Faultline(dsn) as app:
        greet = greeting(app)
        # The database alone knows that a jsonb has no room for it.
        wrong = Submission("greet", '{"name": 1e400000}')

        answers = await asyncio.gather(
            greet.aenqueue("first"), greet.aenqueue("second"), app.aenqueue_many([wrong]), greet.aenqueue("third"),
            return_exceptions=True,
        )  # fmt: skip

        assert [type(one).__name__ for one in answers] == ["JobHandle", "JobHandle", "JobRejected", "JobHandle"]
        assert "job 1 of 1" in str(answers[2])


@played
async def test_a_job_that_others_may_know_goes_alone(dsn: str) -> None:
    """It may wait for whoever holds its key."""
    sent = Sent()
    async with Faultline(dsn, host=Host(faults=sent)) as app:
        greet = greeting(app)

        handles = await asyncio.gather(*(greet.options(idempotency_key="k").aenqueue(1) for _ in range(4)))

        assert sent.enqueues == 4
        assert sum(handle.created for handle in handles) == 1


@played
async def test_a_lost_answer_is_asked_for_again_and_no_job_is_doubled(dsn: str) -> None:
    cut = CutAt("after_enqueue_committed", visit=2)
    async with Faultline(dsn, host=Host(faults=cut)) as app:
        greet = greeting(app)

        handles = await asyncio.gather(*(greet.aenqueue(n) for n in range(5)))

        assert cut.happened
        assert [handle.created for handle in handles] == [True, False, False, False, False]
        assert (await adrain(app)).succeeded == 5


def test_each_event_loop_has_its_own(dsn: str) -> None:
    with Faultline(dsn) as app:
        greet = greeting(app)

        async def some() -> list[Any]:
            handles = await asyncio.gather(*(greet.aenqueue(n) for n in range(5)))
            await app.aclose()
            return list(handles)

        assert len([one for _ in range(2) for one in asyncio.run(some())]) == 10


# The order of things, with a database that answers when it is told to


class Told:
    """Answers a send when its future gets an answer."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.answers: list[asyncio.Future[None]] = []

    async def __call__(self, jobs: list[Submission]) -> list[Enqueued]:
        self.sent.append([job.task for job in jobs])
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        return [Enqueued(job.task, True) for job in jobs]  # type: ignore[arg-type]  # which job it is


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def begun(calls: ConcurrentEnqueues, *names: str) -> list[asyncio.Task[Enqueued]]:
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(calls.enqueue(Submission(name))))
        await turns()
    return tasks


@played
async def test_what_comes_while_one_is_on_its_way_goes_with_the_next() -> None:
    told = Told()
    calls = ConcurrentEnqueues(told, 30.0)
    tasks = await begun(calls, "a", "b", "c")

    told.answers[0].set_result(None)
    await turns()
    tasks += await begun(calls, "d")
    told.answers[1].set_result(None)
    await turns()
    told.answers[2].set_result(None)

    assert [str(one.job_id) for one in await asyncio.gather(*tasks)] == ["a", "b", "c", "d"]
    assert told.sent == [["a"], ["b", "c"], ["d"]]


@played
async def test_a_caller_that_is_cancelled_before_its_job_is_sent_sends_none() -> None:
    told = Told()
    tasks = await begun(ConcurrentEnqueues(told, 30.0), "a", "b", "c")

    tasks[1].cancel()
    await turns()
    told.answers[0].set_result(None)
    await turns()
    told.answers[1].set_result(None)
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert told.sent == [["a"], ["c"]]
    assert [type(one) for one in answers] == [Enqueued, asyncio.CancelledError, Enqueued]


@pytest.mark.parametrize("who", [0, 1])
@played
async def test_a_caller_that_is_cancelled_while_its_job_is_sent_holds_nobody_up(who: int) -> None:
    told = Told()
    tasks = await begun(ConcurrentEnqueues(told, 30.0), "a", "b", "c")
    if who == 1:
        told.answers[0].set_result(None)
        await turns()

    tasks[who].cancel()
    await turns()
    for answer in told.answers:
        if not answer.done():
            answer.set_result(None)
    await turns()
    if not told.answers[-1].done():
        told.answers[-1].set_result(None)
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert told.sent == [["a"], ["b", "c"]]
    assert [type(one) is Enqueued for one in answers] == [n != who for n in range(3)]


@played
async def test_an_error_reaches_each_of_them_as_its_own() -> None:
    told = Told()
    tasks = await begun(ConcurrentEnqueues(told, 30.0), "a", "b", "c")
    told.answers[0].set_result(None)
    await turns()

    told.answers[1].set_exception(DatabaseUnavailable("gone"))
    first, *errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(first, Enqueued)
    assert [(type(error), str(error)) for error in errors] == [(DatabaseUnavailable, "gone")] * 2
    assert errors[0] is not errors[1]


@pytest.mark.parametrize(("answered", "error", "text"), [(0, DatabaseUnavailable, "not sent"), (1, OutcomeUnknown, "may")])
@played
async def test_nobody_waits_longer_than_the_timeout(answered: int, error: type[Exception], text: str) -> None:
    told = Told()
    calls = ConcurrentEnqueues(told, 0.05)
    tasks = await begun(calls, "a", "b")
    for answer in told.answers[:answered]:
        answer.set_result(None)

    with pytest.raises(error, match=text):
        await tasks[1]

    for answer in told.answers:
        if not answer.done():
            answer.set_result(None)
    await tasks[0]
    await turns()
    tasks = await begun(calls, "c")
    told.answers[-1].set_result(None)
    assert str((await tasks[0]).job_id) == "c"


@played
async def test_code_that_cancels_all_tasks_of_the_loop_leaves_no_caller_behind() -> None:
    told = Told()
    calls = ConcurrentEnqueues(told, 30.0)
    tasks = await begun(calls, "a", "b", "c")
    told.answers[0].set_result(None)
    await turns()
    tasks += await begun(calls, "d")

    for task in asyncio.all_tasks() - {asyncio.current_task(), *tasks}:
        task.cancel()
    await turns()
    told.answers[-1].set_result(None)
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in answers] == [Enqueued, OutcomeUnknown, OutcomeUnknown, Enqueued]


@played
async def test_a_rejected_batch_is_sent_one_by_one_and_no_more_than_a_hundred_at_a_time() -> None:
    sent: list[int] = []
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(jobs: list[Submission]) -> list[Enqueued]:
        sent.append(len(jobs))
        if len(sent) == 1:
            await first
        if any(job.task == "wrong" for job in jobs):
            raise JobRejected("wrong")
        return [Enqueued(job.task, True) for job in jobs]  # type: ignore[arg-type]  # which job it is

    sending: Callable[[list[Submission]], Awaitable[list[Enqueued]]] = send
    tasks = await begun(ConcurrentEnqueues(sending, 30.0), "a", "wrong", *(["b"] * 149))
    first.set_result(None)
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert sent == [1, 100, *[1] * 100, 50]
    assert [type(one) for one in answers].count(JobRejected) == 1
