"""What comes out of a history is what went in: values, changed programs, rounds, and answers that do not fit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import ContinueAsNew, Faultline, Job
from faultline.store import verbs
from tests.app.kinds import KINDS, task_of
from tests.flow.running import deploys, ended, journals, signals, waits

if TYPE_CHECKING:
    from faultline import JobHandle


@KINDS
def test_a_changed_program_does_not_complete_its_job_in_a_transaction(app: Faultline, kind: str) -> None:
    @app.step
    def charge() -> str:
        return "charged"

    @task_of(app, kind)
    async def program(job: Job) -> None:
        await job.do(charge)
        allowed = await job.receive("approval", bool)
        async with job.transaction() as tx:
            tx.complete(f"approved: {allowed}")

    @task_of(app, kind, name="changed")
    async def changed(job: Job) -> None:
        async with job.transaction() as tx:
            tx.complete("without asking")

    handle, original = program.enqueue(), program.fn

    assert ended(
        app, handle, waits(app), deploys(app, program.name, changed.fn), signals(app, "approval", False),
        journals(app, "program_changed"), deploys(app, program.name, original),
    ) == "approved: False"  # fmt: skip


@pytest.mark.parametrize("how", ["returned", "raised"])
def test_a_changed_program_does_not_start_over(app: Faultline, how: str) -> None:
    ran: list[str] = []

    @app.step
    def charge() -> str:
        ran.append("charged")
        return "charged"

    @app.task
    async def program(job: Job, n: int) -> int:
        await job.do(charge)
        await job.receive("go", bool)
        return n

    async def changed(job: Job, n: int) -> Any:
        if how == "raised":
            raise ContinueAsNew(n + 1)
        return ContinueAsNew(n + 1)

    handle, original = program.enqueue(0), program.fn

    assert ended(
        app, handle, waits(app), deploys(app, program.name, changed), signals(app, "go", True),
        journals(app, "program_changed"), deploys(app, program.name, original),
    ) == 0  # fmt: skip
    assert ran == ["charged"]


def test_an_answer_to_a_call_does_not_answer_the_next_round(app: Faultline) -> None:
    @app.task
    async def program(job: Job, n: int) -> Any:
        _, got = await job.race(job.receive("stop", str), job.receive("allow", bool, timeout=0.3, default=False))
        return ContinueAsNew(n + 1) if n == 1 else got

    async def both(handle: JobHandle[Any]) -> None:
        with psycopg.connect(app.dsn) as connection:
            connection.execute("select faultline.signal(%s, 'stop', '\"halt\"')", (handle.id,))
            connection.execute("select faultline.signal(%s, 'allow', 'true', for_call => '2', key => 'k')", (handle.id,))

    result = ended(app, program.enqueue(1), waits(app), both)

    assert "False" in str(result)


def test_a_key_counts_once_in_all_rounds(app: Faultline) -> None:
    sent: list[bool] = []

    @app.task
    async def program(job: Job, total: int) -> Any:
        total += await job.receive("pay", int)
        return ContinueAsNew(total) if total < 20 else total

    async def pay(handle: JobHandle[Any]) -> None:
        sent.append(await app.async_database.run(verbs.signal(handle.id, "pay", 10, key="payment-1")))

    result = ended(
        app, program.enqueue(0), waits(app), pay, journals(app, "continued_as_new"), waits(app), pay, signals(app, "pay", 15)
    )

    assert (result, sent) == (25, [True, False])


def test_a_job_starts_over_while_the_loser_of_a_race_is_cancelled_and_its_flow_is_pruned(app: Faultline) -> None:
    @app.task
    async def tool() -> None:
        await asyncio.Event().wait()

    @app.task
    async def program(job: Job, n: int) -> Any:
        if n == 3:
            return "done"
        await job.race(job.receive("skip", str), job.call(tool))
        return ContinueAsNew(n + 1)

    handle = program.enqueue(1)
    skip = signals(app, "skip", "x")

    assert ended(app, handle, waits(app), skip, journals(app, "continued_as_new"), waits(app), skip) == "done"
    with psycopg.connect(app.dsn) as connection:
        connection.execute("select faultline.prune('flows', '0'::interval)")
        left = connection.execute(
            "select (select count(*) from faultline.jobs), (select count(*) from faultline.edges),"
            " (select count(*) from faultline.calls)"
        ).fetchone()
    assert left == (0, 0, 0)
