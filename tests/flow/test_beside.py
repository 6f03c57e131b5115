"""Calls beside each other: all of them, the first of them, and in threads."""

from __future__ import annotations

import asyncio
from typing import Any

from faultline import BlockingJob, Faultline, Job, StepFailed
from tests.flow.running import calls, children_of, ended, job_of, signals, waits


def test_finding_13_the_winner_of_a_race_stays_the_winner(app: Faultline) -> None:
    @app.step
    async def note(value: Any) -> str:
        return f"noted {value}"

    @app.task
    async def program(job: Job) -> list[Any]:
        _, value = await job.race(job.sleep(0.01), job.receive("late", int))
        noted = await job.do(note, value)
        await job.receive("go", bool)
        return [value, noted]

    handle = program.enqueue()

    async def until_noted(_: Any) -> None:
        from tests.waiting import auntil  # noqa: PLC0415

        await auntil(lambda: calls(app, handle).get("5", {}).get("awaited"))

    assert ended(app, handle, until_noted, signals(app, "late", 7), signals(app, "go", True)) == [None, "noted None"]
    assert calls(app, handle)["2"]["outcome"] == "closed"


def test_children_of_a_loser_are_cancelled(app: Faultline) -> None:
    @app.task
    async def child() -> None:
        await asyncio.Event().wait()

    @app.task
    async def program(job: Job) -> str:
        return str((await job.race(job.call(child), job.receive("go", str))).value)

    handle = program.enqueue()

    async def until_cancelled(_: Any) -> None:
        from tests.waiting import auntil  # noqa: PLC0415

        (child_id,) = children_of(app, handle)
        await auntil(lambda: app.job(child_id).state == "cancelled")

    assert ended(app, handle, waits(app), signals(app, "go", "went"), until_cancelled) == "went"


def test_a_step_wins_a_race_against_a_wait(app: Faultline) -> None:
    @app.step
    async def quick() -> str:
        return "quick"

    @app.task
    async def program(job: Job) -> str:
        _, first = await job.race(job.receive("never", str), job.do(quick))
        await job.sleep(0.01)
        return first

    assert ended(app, program.enqueue()) == "quick"


def test_a_sleep_wins_a_race_against_a_step_that_takes_long(app: Faultline) -> None:
    cancelled: list[str] = []

    @app.step
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return "slow"

    @app.task(max_attempts=1)
    async def program(job: Job) -> Any:
        won = (await job.race(job.sleep(0.5), job.do(slow))).value
        await job.sleep(0.01)
        return won

    handle = program.enqueue()

    assert ended(app, handle) is None
    assert cancelled
    recorded = calls(app, handle)
    assert (recorded["1"]["outcome"], recorded["2"]["outcome"], recorded["3"]["result"]) == ("done", "closed", {"winner": 0})


def test_a_branch_that_sleeps_shorter_wins_a_race(app: Faultline) -> None:
    @app.task
    async def program(job: Job) -> Any:
        async def nap(seconds: float) -> float:
            await job.sleep(seconds)
            return seconds

        return (await job.race(job.branch(nap, 3600), job.branch(nap, 0.01))).value

    assert ended(app, program.enqueue()) == 0.01


def test_an_error_beside_others_is_raised_when_they_have_ended(app: Faultline) -> None:
    ran: list[int] = []

    @app.step
    async def bad() -> None:
        raise ValueError("bad")

    @app.step
    async def good() -> None:
        await asyncio.sleep(0.01)
        ran.append(1)

    @app.task
    async def program(job: Job) -> list[Any]:
        try:
            await job.gather(job.do(bad), job.do(good))
        except StepFailed as error:
            await job.sleep(0.01)
            return [error.kind, *ran]
        return []

    assert ended(app, program.enqueue()) == ["ValueError", 1]


def test_a_blocking_program_runs_calls_beside_each_other_in_threads(app: Faultline) -> None:
    ran: list[str] = []

    @app.step
    def fetch(name: str) -> str:
        ran.append(name)
        return name.upper()

    @app.task
    def child(n: int) -> int:
        return n * 2

    @app.task
    def program(job: BlockingJob) -> list[Any]:
        def branch(name: str) -> str:
            first = job.do(fetch, name)
            job.sleep(0.01)
            return job.do(fetch, first + name)

        later = job.later
        text, doubled = job.gather(later.do(fetch, "a"), later.call(child, 4))
        branches = job.gather(later.branch(branch, "b"), later.branch(branch, "c"))
        _, won = job.race(later.receive("never", str), later.do(fetch, "d"))
        return [text, doubled, *branches, won]

    handle = program.enqueue()

    assert ended(app, handle) == ["A", 8, "BB", "CC", "D"]
    assert sorted(ran) == ["Bb", "Cc", "a", "b", "c", "d"]
    assert job_of(app, handle)["attempt"] == 1
