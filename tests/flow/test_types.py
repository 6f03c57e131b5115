"""A type checker knows what the calls of a program return, and refuses wrong ones. Asked of mypy itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.app.test_typing import checked

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

PROGRAM = """
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, assert_type
from uuid import UUID
from faultline import ContinueAsNew, BlockingCall, BlockingJob, Call, Faultline, Job, JobHandle, Retries, Transaction, Won

app = Faultline("x")

@dataclass
class Approval:
    ok: bool

@app.step(retries=Retries(5, on=ConnectionError), timeout=60)
async def draft(topic: str) -> str:
    return topic

@app.step
def count(text: str, times: int = 1) -> int:
    return 0

@app.task
async def summarise(document: str, long: bool = False) -> Approval:
    return Approval(True)

@app.task
async def endless(job: Job, n: int) -> int | ContinueAsNew:
    return ContinueAsNew(n + 1)

@app.step
async def forget(text: str | None, topic: str) -> None: ...

@app.step
def uncount(counted: int | None, text: str, times: int = 1) -> None: ...

@app.step
async def decide(text: str) -> Literal["yes", "no"]:
    return "yes"

@app.task
async def decided(approval: Approval) -> Literal["yes", "no"]:
    return "yes"

@app.task(queue="x")
async def either(job: Job, n: int) -> Approval | str:
    return ""

async def debit(tx: Transaction, amount: int) -> float:
    return 0.0

async def branch(n: int) -> bytes:
    return b""

async def program(job: Job, handle: JobHandle[str], job_id: UUID) -> None:
    assert_type(job.do(draft, "x"), Call[str])
    assert_type(await job.do(count, "x", times=2), int)
    assert_type(await job.atomic("debit", debit, 3), float)
    assert_type(await job.call(summarise, "x"), Approval)
    assert_type(await job.call(endless, 1), int)
    assert_type(await job.map(summarise, ["x"]), list[Approval])
    assert_type(await job.map(summarise, ["x"], on_failure="keep"), list[Approval | None])
    assert_type(await job.receive("approval", Approval, timeout=timedelta(days=3)), Approval)
    assert_type(await job.receive("approval", Approval, timeout=3, default=None), Approval | None)
    assert_type(await job.gather(job.do(draft, "x"), job.do(count, "y")), tuple[str, int])
    assert_type(await job.gather(job.do(draft, "x"), job.branch(branch, 1), job.sleep(1)), tuple[str, bytes, None])
    assert_type(await job.race(job.do(draft, "x"), job.do(draft, "y")), Won[str])
    assert_type((await job.race(job.sleep(1), job.do(draft, "y"))).value, str | None)
    assert_type(await job.watch(handle), str)
    assert_type(await job.watch(job_id), Any)
    assert_type(await job.enqueue(summarise, "x"), UUID)
    assert_type(await job.patched("x"), bool)
    assert_type(await job.receive("approval", Approval, default=None), Approval | None)
    assert_type(await job.receive("approval", Literal["yes", "no"]), Any)
    assert_type(await job.receive("approval", Approval | None, timeout=3, default="late"), Any)
    assert_type(await job.receive("approval", timeout=3, default=None), Any)
    answer: Literal["yes", "no"] = await job.receive("approval", Literal["yes", "no"])
    async for one in job.results(summarise, ["x"]):
        assert_type(one, Approval)
    async for perhaps in job.results(summarise, ["x"], on_failure="keep"):
        assert_type(perhaps, Approval | None)
    assert_type(await job.do(decide, "x"), Literal["yes", "no"])
    assert_type(await job.call(decided, Approval(True)), Literal["yes", "no"])
    assert_type(await job.map(decided, [Approval(True)]), list[Literal["yes", "no"]])
    assert_type(await job.call(either, 1), Approval | str)
    async with job.saga() as saga:
        assert_type(await saga.do(draft, "x"), str)
        assert_type(await saga.do(count, "x", times=2), int)
        assert_type(await saga.do(draft, "x", undo=forget), str)
        assert_type(await saga.do(count, "x", 2, undo=uncount), int)
        assert_type(await saga.do(count, "x", undo=uncount), int)

def blocking(job: BlockingJob) -> None:
    assert_type(job.do(count, "x"), int)
    assert_type(job.later.do(count, "x"), BlockingCall[int])
    assert_type(job.call(summarise, "x"), Approval)
    assert_type(job.gather(job.later.do(count, "x"), job.later.call(summarise, "x")), tuple[int, Approval])
    for one in job.results(summarise, ["x"]):
        assert_type(one, Approval)
    for perhaps in job.results(summarise, ["x"], on_failure="keep"):
        assert_type(perhaps, Approval | None)
    assert_type(job.patched("x"), bool)
    with job.saga() as saga:
        assert_type(saga.do(count, "x", 2, undo=uncount), int)
        saga.do(count, 2, undo=uncount)  # refused: int for str

async def bad(job: Job) -> None:
    job.do(draft, 1)  # refused: int for str
    job.do(draft)  # refused: missing
    job.call(summarise, "x", "y")  # refused: str for bool
    job.map(summarise, [1])  # refused: int for str
    job.map(summarise, ["x"], on_failure="ignore")  # refused: no such policy
    job.receive("approval", Approval, timeout="3")  # refused: str for a duration
    job.atomic("debit", debit, "3")  # refused: str for int
    x: int = await job.do(draft, "x")  # refused: the result is str
    job.gather("x", "y")  # refused: no calls
    [one for one in job.map(summarise, ["x"])]  # refused: not awaited
    job.do(draft, "x").upper()  # refused: not awaited
    job.call(draft, "x")  # refused: a step
    job.do(summarise, "x")  # refused: a task
    job.results(summarise, ["x"], on_failure="ignore")  # refused: no such policy
    async with job.saga() as saga:
        await saga.do(draft, 1)  # refused: int for str
        await saga.do(draft, 1, undo=forget)  # refused: int for str
        await saga.do(draft, "x", undo=uncount)  # refused: undoes another result
        await saga.do(count, "x", 2, undo=forget)  # refused: likewise
"""


def test_finding_23_a_type_checker_knows_the_results_of_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    wanted = {n for n, line in enumerate(PROGRAM.splitlines(), start=1) if "# refused" in line}

    refused, said = checked(tmp_path, PROGRAM)

    assert refused == wanted, said
