"""What broke an earlier design of flows: branches, late answers, changed programs, task groups, and more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ChildFailed, Faultline, Job, JobFailed
from faultline.history.ending import CodeChanged
from tests.app.kinds import KINDS, task_of
from tests.flow.running import calls, deploys, ended, job_of, journals, signals, waits
from tests.waiting import auntil

if TYPE_CHECKING:
    from faultline import JobHandle


def test_finding_01_each_branch_gets_its_own_results_whichever_is_quicker(app: Faultline) -> None:
    @app.step
    async def price(item: str) -> str:
        # In the first run, the first branch is the slower one.
        await asyncio.sleep(0.05 if item == "gold" else 0)
        return f"price of {item}"

    @app.task
    async def program(job: Job) -> list[list[str]]:
        async def branch(item: str) -> list[str]:
            first = await job.do(price, item)
            await job.sleep(0.01)
            return [first, await job.do(price, f"{item}, again")]

        return list(await job.gather(job.branch(branch, "gold"), job.branch(branch, "tin")))

    handle = program.enqueue()

    assert ended(app, handle) == [
        ["price of gold", "price of gold, again"],
        ["price of tin", "price of tin, again"],
    ]
    assert list(calls(app, handle)) == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"]


def test_finding_01_a_task_of_the_programs_own_makes_no_calls(app: Faultline) -> None:
    @app.step
    async def price(item: str) -> str:
        return item

    @app.task(max_attempts=1)
    async def program(job: Job) -> list[str]:
        await job.do(price, "first")

        async def one(item: str) -> str:
            return await job.do(price, item)

        return list(await asyncio.gather(one("gold"), one("tin")))

    assert "use job.gather(job.branch(" in str(ended(app, program.enqueue()))


def test_finding_01_other_arguments_are_another_program(app: Faultline) -> None:
    given = ["gold"]

    @app.step
    async def price(item: str) -> str:
        return item

    @app.task
    async def program(job: Job) -> str:
        await job.do(price, given[0])
        given[0] = "tin"
        await job.receive("go", bool)
        return "done"

    async def back(_: JobHandle[Any]) -> None:
        given[0] = "gold"

    handle = program.enqueue()

    assert ended(app, handle, waits(app), signals(app, "go", True), journals(app, "program_changed"), back) == "done"


@KINDS
def test_finding_02_a_late_approval_does_not_answer_the_next_question(app: Faultline, kind: str) -> None:
    @task_of(app, kind)
    async def program(job: Job) -> list[Any]:
        first = await job.receive("allow", bool, timeout=0.01, default=False)
        await job.receive("late approval was sent", bool)
        return [first, await job.receive("allow", bool, timeout=0.01, default=False)]

    handle = program.enqueue()

    assert ended(
        app, handle, waits_for(app, "late approval was sent"), signals(app, "allow", True),
        signals(app, "late approval was sent", True),
    ) == [False, False]  # fmt: skip


@KINDS
def test_finding_05_an_honest_except_does_not_swallow_a_changed_program(app: Faultline, kind: str) -> None:
    ran: list[str] = []

    @app.step
    def old() -> str:
        return "old"

    @app.step
    def new() -> str:
        ran.append("new")
        return "new"

    @app.step
    def fallback() -> str:
        ran.append("fallback")
        return "fallback"

    @task_of(app, kind)
    async def program(job: Job) -> str:
        text = await job.do(old)
        await job.receive("go", bool)
        return text

    @task_of(app, kind, name="changed")
    async def changed(job: Job) -> str:
        try:
            return await job.do(new)
        except BaseException as error:  # noqa: BLE001 - as careless code does
            ran.append(type(error).__name__)
        return await job.do(fallback)

    handle = program.enqueue()
    original = program.fn

    result = ended(
        app, handle, waits(app), deploys(app, program.name, changed.fn), signals(app, "go", True),
        journals(app, "program_changed"), deploys(app, program.name, original),
    )  # fmt: skip

    assert result == "old"
    assert set(ran) == {CodeChanged.__name__}


async def swallows(job: Job) -> None:
    with contextlib.suppress(BaseException):
        await job.sleep(0.01)


@pytest.mark.parametrize("group", ["task group", "gather", "swallowed"])
def test_finding_11_a_suspension_survives_what_stands_around_it(app: Faultline, group: str) -> None:
    @app.task(max_attempts=1)
    async def program(job: Job) -> str:
        if group == "task group":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.Event().wait() if job.fencing_token == 1 else asyncio.sleep(0))
                await job.sleep(0.01)
        elif group == "gather":
            # What its branch raises is dropped, and the branch waits all the same.
            async def branch() -> None:
                await job.gather(job.branch(swallows, job), job.sleep(0.01))

            await branch()
        else:
            try:
                await job.sleep(0.01)
            except BaseException:  # noqa: BLE001 - as careless code does
                return "swallowed"
        return "slept"

    handle = program.enqueue()

    assert ended(app, handle) == "slept"
    assert job_of(app, handle)["attempt"] == 1


def test_finding_11_a_gather_of_asyncio_that_drops_errors_neither_completes_nor_loses_the_job(app: Faultline) -> None:
    ran: list[str] = []

    @app.step
    async def publish() -> str:
        ran.append("publish")
        return "published"

    async def asks(job: Job) -> bool:
        return await job.receive("approval", bool)

    @app.task(name="program", max_attempts=1)
    async def wrong(job: Job) -> str:
        await asyncio.gather(asks(job), return_exceptions=True)
        return "published without asking"

    @app.task(name="right")
    async def right(job: Job) -> str:
        await job.gather(job.branch(asks, job))
        return await job.do(publish)

    handle = wrong.enqueue()
    assert "use job.gather(job.branch(" in str(ended(app, handle))
    assert ran == []

    app.tasks["program"].fn = right.fn
    app.retry(handle.id)

    assert ended(app, handle, waits(app), signals(app, "approval", True)) == "published"


@KINDS
def test_finding_12_a_patch_in_a_loop_is_in_force_from_where_it_was_deployed(app: Faultline, kind: str) -> None:
    ran: list[int] = []

    @app.step
    def check(round_: int) -> int:
        ran.append(round_)
        return round_

    @task_of(app, kind)
    async def loop(job: Job) -> list[int]:
        for _ in range(2):
            await job.receive("next", bool)
        return []

    @task_of(app, kind, name="patched")
    async def patched(job: Job) -> list[int]:
        found = []
        for n in range(4):
            if await job.patched("check"):
                found.append(await job.do(check, n))
            await job.receive("next", bool)
        return found

    handle = loop.enqueue()
    first, rest = signals(app, "next", True), signals(app, "next", True)

    result = ended(
        app, handle, waits(app), deploys(app, loop.name, patched.fn), first, waits_at(app, 3), rest, waits_at(app, 5), rest,
        waits_at(app, 7), rest,
    )  # fmt: skip

    assert result == [1, 2, 3]
    assert ran == [1, 2, 3]


@KINDS
def test_finding_14_a_map_does_not_go_on_with_other_items(app: Faultline, kind: str) -> None:
    items = [["a", "b"]]
    ran: list[str] = []

    @task_of(app, kind)
    async def child(item: str) -> str:
        ran.append(item)
        return item

    @task_of(app, kind)
    async def program(job: Job) -> list[str]:
        mapped = list(items[0])
        items[0] = ["x", "a", "b"]
        return list(await job.map(child, mapped))

    async def back(_: JobHandle[Any]) -> None:
        items[0] = ["a", "b"]

    assert ended(app, program.enqueue(), journals(app, "program_changed"), back) == ["a", "b"]
    assert sorted(ran) == ["a", "b"]


@KINDS
def test_finding_17_one_failed_child_ends_its_parent_at_once(app: Faultline, kind: str) -> None:
    @task_of(app, kind, max_attempts=1)
    async def child(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        return list(await job.map(child, [0, 1, 2]))

    handle = program.enqueue()
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "ChildFailed" in str(error)
    assert "1 of 3 jobs of child have not succeeded. number 1: failed: ValueError: one" in str(error)
    assert job_of(app, handle)["attempt"] == 1


@KINDS
def test_finding_17_a_program_may_catch_a_failed_child(app: Faultline, kind: str) -> None:
    @task_of(app, kind, max_attempts=1)
    async def child(n: int) -> int:
        raise ValueError("never")

    @task_of(app, kind)
    async def program(job: Job) -> Any:
        try:
            await job.call(child, 1)
        except ChildFailed as error:
            await job.sleep(0.01)
            return list(error.errors.values())
        return None

    assert ended(app, program.enqueue()) == ["failed: ValueError: never"]


def test_finding_18_a_gather_of_plain_calls_waits_once_for_all(app: Faultline) -> None:
    runs: list[int] = []

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def program(job: Job) -> list[int]:
        runs.append(job.fencing_token)
        return list(await job.gather(*(job.call(child, n) for n in range(20))))

    assert ended(app, program.enqueue()) == list(range(20))
    assert len(runs) <= 3


@KINDS
def test_finding_22_a_step_may_have_any_name(app: Faultline, kind: str) -> None:
    @app.step(name="a")
    def one() -> int:
        return 1

    @app.step(name="a#2")
    def other() -> int:
        return 2

    @task_of(app, kind)
    async def program(job: Job) -> list[int]:
        found = [await job.do(one), await job.do(other), await job.do(one)]
        await job.sleep(0.01)
        return found

    assert ended(app, program.enqueue()) == [1, 2, 1]


def waits_for(app: Faultline, name: str) -> Any:
    """Wait until the job waits for this signal."""

    async def wait(handle: JobHandle[Any]) -> None:
        await auntil(lambda: any(one["name"] == name and one["awaited"] for one in calls(app, handle).values()))

    return wait


def waits_at(app: Faultline, number: int) -> Any:
    """Wait until the job waits at this call."""

    async def wait(handle: JobHandle[Any]) -> None:
        await auntil(lambda: calls(app, handle).get(str(number), {}).get("awaited"))

    return wait
