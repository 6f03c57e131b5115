"""When a failed attempt is followed by another, and after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Backoff, ConfigError, Fail, Faultline, JobFailed, JobRejected, JobState, Retry
from faultline.core import pause
from faultline.testing import drain, inline
from tests.app.kinds import KINDS
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline import Task
    from tests.driver import Driver


class RateLimited(Exception): ...


class BadCard(ValueError): ...


#: The options of a task, what it raises, how often it runs, and what the error says beside that.
RULES: dict[str, tuple[dict[str, Any], Callable[[], BaseException], int, str]] = {
    "no rules": ({}, lambda: BadCard("x"), 3, "BadCard: x"),
    "retried": ({"retry_on": RateLimited}, lambda: RateLimited("x"), 3, "RateLimited: x"),
    "not in retry_on": ({"retry_on": (RateLimited, OSError)}, lambda: BadCard("x"), 1, "has only RateLimited, OSError"),
    "a subclass is retried": ({"retry_on": (OSError,)}, lambda: ConnectionError("x"), 3, "ConnectionError"),
    "given up on": ({"give_up_on": (ValueError,)}, lambda: BadCard("x"), 1, "give_up_on of the task has ValueError"),
    "not given up on": ({"give_up_on": (ValueError,)}, lambda: RateLimited("x"), 3, "RateLimited"),
    "given up on wins": ({"retry_on": (Exception,), "give_up_on": [BadCard]}, lambda: BadCard("x"), 1, "has BadCard"),
    "a group is retried": (
        {"retry_on": RateLimited},
        lambda: ExceptionGroup("g", [RateLimited("x"), ExceptionGroup("h", [RateLimited("y")])]),
        3,
        "ExceptionGroup",
    ),
    "a group with another": (
        {"retry_on": RateLimited}, lambda: ExceptionGroup("g", [RateLimited("x"), BadCard("y")]), 1, "has only RateLimited"
    ),
    "a group given up on": (
        {"give_up_on": BadCard}, lambda: ExceptionGroup("g", [RateLimited("x"), BadCard("y")]), 1, "give_up_on"
    ),
    "an exit": ({"retry_on": RateLimited}, lambda: SystemExit(3), 1, "has only RateLimited"),
    "asked for": ({"give_up_on": BadCard}, lambda: Retry(0, error=BadCard("x")), 3, "BadCard: x"),
    "failed": ({"retry_on": BadCard}, lambda: Fail("no such order"), 1, "no such order"),
    "failed by an exception": ({}, lambda: Fail(BadCard("expired")), 1, "BadCard: expired"),
}  # fmt: skip


@KINDS
@pytest.mark.parametrize("rule", RULES)
def test_rules_say_after_which_exceptions_another_attempt_follows(
    app: Faultline, queue: Driver, kind: str, rule: str
) -> None:
    options, made, wanted, said = RULES[rule]
    runs: Counter[str] = Counter()

    def charge() -> None:
        runs["runs"] += 1
        raise made()

    async def acharge() -> None:
        charge()

    task = app.task(name="charge", max_attempts=3, backoff=lambda _: 0, **options)(acharge if kind == "async" else charge)
    handle = task.enqueue()
    (error,) = results(app, [handle])

    assert isinstance(error, JobFailed)
    assert said in str(error)
    assert runs["runs"] == wanted
    assert queue.job(handle.id).state is JobState.FAILED
    assert queue.job(handle.id).attempt == wanted


@pytest.mark.parametrize("said", ["returned", "raised"])
def test_fail_ends_a_job_however_it_is_said(app: Faultline, said: str) -> None:
    @app.task(max_attempts=5)
    async def charge() -> str | Fail:
        if said == "raised":
            raise Fail("the account is closed")
        return Fail("the account is closed")

    (error,) = results(app, [charge.enqueue()])

    assert isinstance(error, JobFailed)
    assert str(error).endswith("failed: the account is closed")


def test_a_class_that_is_returned_instead_of_an_outcome_says_what_to_write(app: Faultline) -> None:
    @app.task(max_attempts=5)
    async def charge() -> Any:
        return Retry

    (error,) = results(app, [charge.enqueue()])

    assert "write `return Retry(...)`" in str(error)


def test_fail_of_an_inline_task_is_raised_as_a_failure(app: Faultline) -> None:
    @app.task
    def charge() -> None:
        raise Fail("no such order")

    with inline(app), pytest.raises(JobFailed, match="no such order"):
        charge.enqueue()


@pytest.mark.parametrize("kind", ["async", "stubborn", "blocking"])
def test_an_attempt_that_timed_out_is_a_timeout_for_the_rules(app: Faultline, kind: str) -> None:
    runs: Counter[str] = Counter()

    async def nap(name: str) -> None:
        runs[name] += 1
        await asyncio.sleep(60)

    async def swallow(name: str) -> None:
        runs[name] += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            time.sleep(0)  # noqa: ASYNC251 - it goes on as if nothing had happened
            await asyncio.sleep(6)

    def block(name: str) -> None:
        runs[name] += 1
        time.sleep(0.3)

    fn = {"async": nap, "stubborn": swallow, "blocking": block}[kind]
    options: dict[str, Any] = {"max_attempts": 2, "timeout": 0.05, "backoff": Backoff.fixed(0)}
    retried: Task[..., Any] = app.task(name="retried", retry_on=TimeoutError, **options)(fn)
    given_up: Task[..., Any] = app.task(name="given up", give_up_on=TimeoutError, **options)(fn)

    found = results(app, [retried.enqueue("retried"), given_up.enqueue("given up")])

    assert all("TimedOut: timed out after 0.05 s" in str(error) for error in found)
    assert "give_up_on of the task has TimeoutError" in str(found[1])
    assert runs == {"retried": 2, "given up": 1}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a number": ({"backoff": 5}, r"task charge: backoff is 5; .*write Backoff.fixed\("),
    "a duration": ({"backoff": timedelta(minutes=1)}, r"write Backoff.fixed\("),
    "a text": ({"backoff": "1m"}, "backoff must be a Backoff, .*not '1m'"),
    "the class": ({"backoff": Backoff}, "backoff must be a Backoff"),
    "no parameter": ({"backoff": lambda: 5}, "called with the number of the failed attempt"),
    "two parameters": ({"backoff": lambda _, __: 5}, "called with the number of the failed attempt"),
    "an async function": ({"backoff": asyncio.sleep}, "async function"),
    "a name": ({"retry_on": "RateLimited"}, "retry_on takes classes of exceptions, .*not 'RateLimited'"),
    "an instance": ({"give_up_on": (BadCard(),)}, "give_up_on takes classes of exceptions"),
    "no exception": ({"retry_on": int}, "retry_on takes classes of exceptions"),
    "what ends programs": ({"retry_on": KeyboardInterrupt}, "retry_on takes classes of exceptions"),
    "nothing": ({"retry_on": ()}, "retry_on is empty; .*max_attempts=1"),
    "an outcome": ({"retry_on": (Retry,)}, "says itself what follows"),
    "both": ({"retry_on": BadCard, "give_up_on": BadCard}, "BadCard is in retry_on and in give_up_on"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_raises_where_the_task_is_decorated(app: Faultline, what: str) -> None:
    options, said = WRONG[what]

    with pytest.raises(ConfigError, match=said):

        @app.task(**options)
        async def charge() -> None: ...

    assert app.tasks == {}


BAD: dict[str, Callable[[], Any]] = {
    "first": lambda: Backoff.exponential(-1),
    "no number": lambda: Backoff.fixed(float("nan")),
    "a text": lambda: Backoff.fixed("5"),  # type: ignore[arg-type]
    "nothing": lambda: Backoff.fixed(None),  # type: ignore[arg-type]
    "most": lambda: Backoff.exponential(60, most=30),
    "factor": lambda: Backoff.exponential(factor=0.5),
    "a factor of no number": lambda: Backoff.exponential(factor=float("nan")),
    "jitter": lambda: Backoff.fixed(1, jitter=2),
    "a year": lambda: Backoff.fixed(timedelta(days=400)),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_backoff_raises_where_it_is_made(what: str) -> None:
    with pytest.raises((ConfigError, JobRejected)):
        BAD[what]()


def test_a_backoff_grows_up_to_its_limit_and_is_spread() -> None:
    growing = Backoff.exponential(5, factor=3, most=timedelta(minutes=1), jitter=0.5)
    chance = random.Random(7)

    assert [growing(attempt) for attempt in (1, 2, 3, 4, 1000)] == [5, 15, 45, 60, 60]
    assert {Backoff.fixed(60)(attempt) for attempt in range(1, 1000)} == {60}
    spread = [growing.spread(4, chance) for _ in range(1000)]
    assert 30 <= min(spread) < 35
    assert 85 < max(spread) <= 90


def test_the_default_is_what_the_database_has() -> None:
    assert [Backoff.exponential()(n) for n in range(1, 30)] == [pause.after_attempt(n) for n in range(1, 30)]
    chance, other = random.Random(1), random.Random(1)
    assert Backoff.exponential().spread(3, chance) == pause.jittered(pause.after_attempt(3), other)


def test_a_backoff_says_when_the_next_attempt_runs(app: Faultline, queue: Driver) -> None:
    delays: dict[str, Any] = {
        "fixed": Backoff.fixed(60),
        "function": lambda attempt: timedelta(minutes=attempt),
        "spread": Backoff.fixed(60, jitter=0.5),
    }
    handles = {}
    for name, delay in delays.items():

        @app.task(name=name, backoff=delay)
        async def fail() -> None:
            raise RateLimited

        handles[name] = fail.enqueue()

    assert drain(app).rescheduled == 3
    waits = {name: _waits(queue, handle.id) for name, handle in handles.items()}
    assert waits["fixed"] == pytest.approx(60, abs=1)
    assert waits["function"] == pytest.approx(60, abs=1)
    assert 29 < waits["spread"] < 91


def _waits(queue: Driver, job_id: Any) -> float:
    (failed,) = queue.journal(job_id)
    due = queue.job(job_id).next_run_at
    assert due is not None
    return (due - failed.at).total_seconds()
