"""A type checker completes a task's arguments and refuses wrong ones. Asked of mypy itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

PROGRAM = """
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Never, TypeVar, assert_type
import sqlalchemy
import sqlalchemy.ext.asyncio as sa_async
import sqlalchemy.orm as sa_orm
from psycopg import AsyncConnection, Connection
from psycopg.rows import dict_row
from faultline import Attempt, BlockingJob, Cancel, Faultline, Job, JobHandle, Retention, Retry, Snooze, Submission, Task
from faultline import BlockingTransaction, JoinedTransaction, Transaction, Worker, WorkerOptions

app = Faultline("x")

@app.task(queue="mail", max_attempts=5, lease=30)
async def charge(job: Job, order_id: int, note: str = "") -> dict[str, int]:
    return {}

@app.task
def ship(order_id: int) -> str:
    return ""

@app.task(executor="process")
def render(page: int) -> str:
    return ""

@app.batch_task(size=100)
async def embed(texts: list[str]) -> list[float]:
    return []

@app.batch_task(size=100)
def push(jobs: list[Attempt], devices: list[int]) -> None: ...

@app.middleware
async def around(job: Attempt, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()

@app.on_failure
async def tell(job: Attempt, error: BaseException) -> None: ...

@app.on_enqueue
def note(handle: JobHandle[Any], submission: Submission) -> None: ...

@app.batch_task(size=3)
async def each(texts: list[str]) -> list[int | Exception | Retry | None]:
    return []

assert_type(render.enqueue(1), JobHandle[str])
assert_type(embed.enqueue("a"), JobHandle[float])
assert_type(push.enqueue(7), JobHandle[None])
embed.enqueue(7)  # refused
push.enqueue("a")  # refused
assert_type(each.enqueue("a"), JobHandle[int | None])
app.on_start(tell)  # refused: there is no error
app.on_retry(note)  # refused: a handle for the job
app.on_enqueue(tell)  # refused: an attempt for the handle
app.lifespan(around)  # refused: it takes something
app.middleware(tell)  # refused: an error for the call
app.task(executor="fork")  # refused

async def good(
    blocking: Connection, waiting: AsyncConnection, orm: sa_orm.Session, async_orm: sa_async.AsyncSession,
    core: sqlalchemy.Connection, async_core: sa_async.AsyncConnection, untyped: Any,
) -> None:
    assert_type(charge.enqueue(42), JobHandle[dict[str, int]])
    assert_type(ship.options(delay=60).enqueue(order_id=42), JobHandle[str])
    assert_type(charge.enqueue(42).result(timeout=3), dict[str, int])
    assert_type(await charge.aenqueue(42, note="n"), JobHandle[dict[str, int]])
    assert_type(charge.using(blocking).enqueue(42), JobHandle[dict[str, int]])
    assert_type(await charge.using(waiting).aenqueue(42, note="n"), JobHandle[dict[str, int]])
    charge.using(orm).enqueue(42)
    await charge.using(async_orm).aenqueue(42)
    charge.using(core).enqueue(42)
    await charge.using(async_core).aenqueue(42)
    ship.options(delay=60).using(untyped).enqueue(order_id=42)
    assert_type(app.enqueue("ship", {"order_id": 42}, queue="mail"), JobHandle[Any])
    app.enqueue_many(ship.bind(n) for n in range(3))
    app.using(blocking).enqueue_many([ship.bind(1)])
    assert_type(ship.bind(1), Submission)
    assert_type(app.worker({"mail": 50}, grace_seconds=5, retention=Retention(ledger=3600)), Worker)
    options: WorkerOptions = {"loop_timeout_seconds": 60.0}
    app.run_worker(**options)

async def write(job: Job) -> None:
    async with job.transaction() as tx:
        assert_type(tx, Transaction)
        assert_type(await (await tx.execute("select %s", (1,))).fetchone(), tuple[Any, ...] | None)
        async with tx.cursor(row_factory=dict_row) as cursor:
            assert_type(await cursor.fetchone(), dict[str, Any] | None)
        tx.execute("select 1")  # refused: not awaited
        job.progress(1)  # refused: not awaited
        charge.aenqueue(1)  # refused: not awaited
        await charge.using(tx).aenqueue(1)

async def write_with_sqlalchemy(job: Job, session: sa_async.AsyncSession) -> None:
    async with job.transaction(session) as tx:
        assert_type(tx, JoinedTransaction)
        tx.execute("select 1")  # refused: through the session

def write_in_a_thread(job: BlockingJob, session: sa_orm.Session) -> None:
    with job.transaction() as tx:
        assert_type(tx, BlockingTransaction)
        assert_type(tx.execute("select %s", (1,)).fetchone(), tuple[Any, ...] | None)
        charge.using(tx).enqueue(1)
    with job.transaction(session) as joined:
        joined.complete()

@app.task
async def wait(n: int) -> str | Retry | Snooze | Cancel:
    return Snooze(60)

@app.task(max_attempts=5)
def wait_in_a_thread(job: BlockingJob, n: int) -> list[int] | None | Cancel:
    return Cancel()

@app.task
def wait_for_nothing(n: int) -> Snooze | None:
    return None

@app.task
async def wait_for_ever() -> Snooze:
    return Snooze(60)

@app.task
def look(n: int) -> Any:
    return n

T = TypeVar("T")

def registered(value: T) -> Task[[int], T]:
    @app.task
    async def give(n: int) -> T | Snooze:
        return value
    return give

def outcomes_are_no_results() -> None:
    assert_type(wait.enqueue(1).result(), str)
    assert_type(wait.enqueue(1), JobHandle[str])
    assert_type(wait_in_a_thread.enqueue(n=1).result(), list[int] | None)
    assert_type(wait_for_nothing.enqueue(1), JobHandle[None])
    assert_type(wait_for_ever.enqueue(), JobHandle[Never])
    assert_type(look.enqueue(1).result(), Any)
    assert_type(registered(b"").enqueue(1).result(), bytes)

async def calls(job: Job) -> None:
    assert_type(await charge(job, 42), dict[str, int])
    called: Coroutine[Any, Any, dict[str, int]] = charge(job, 42)
    await called
    charge(job, 42)  # refused: not awaited
    assert_type(await charge.options(delay=60)(job, 42), dict[str, int])
    waited = await wait(1)
    if isinstance(waited, str):
        assert_type(waited, str)
    waited.upper()  # refused: it may be an outcome
    charge(job, 42).items()  # refused: not awaited
    assert_type(look(1), Any)

async def draft(n: int) -> str:
    return ""

def count(text: str) -> int:
    return 0

async def steps(job: Job) -> str:
    assert_type(await job.step("count", count, "text"), int)
    assert_type(await job.step("look", look, 1), Any)
    return await job.step("draft", draft, 1)

def blocking_steps(job: BlockingJob) -> int:
    return job.step("count", count, "text")

def bad(blocking: Connection, orm: sa_orm.Session, engine: sqlalchemy.Engine, untyped: Any) -> None:
    charge.enqueue("42")  # refused: str for int
    charge.enqueue()  # refused: missing
    charge.enqueue(42, colour="red")  # refused: unknown
    ship.bind(1, 2)  # refused: too many
    app.using(blocking).enqueue_many([ship.bind("1")])  # refused: str for int
    charge.using(blocking).enqueue("42")  # refused: str for int
    charge.using(orm).enqueue()  # refused: nothing for order_id
    charge.using(untyped).enqueue(42, colour="red")  # refused: no such parameter
    charge.using("postgresql://x")  # refused: str for a session
    charge.using(engine)  # refused: an engine for a session
    app.enqueue("ship", {"order_id": 42}, colour="red")  # refused: no such option
    ship.options(delai=60)  # refused: unknown option
    ship.options(priority="high")  # refused: str for int
    x: int = ship.enqueue(1).result()  # refused: result is str
    wait.enqueue("1")  # refused: str for int
    y: int = wait.enqueue(1).result()  # refused: result is str
    app.worker(grace=5)  # refused: unknown option
    app.worker(grace_seconds="5")  # refused: str for float
    app.run_worker({"mail": "50"})  # refused: str for int
    app.run_worker(retention=3600)  # refused: a number for Retention
"""


def test_a_type_checker_accepts_right_arguments_and_refuses_wrong_ones(tmp_path: Path) -> None:
    wanted = {n for n, line in enumerate(PROGRAM.splitlines(), start=1) if "# refused" in line}

    refused, said = checked(tmp_path, PROGRAM)

    assert refused == wanted, said


def checked(folder: Path, text: str) -> tuple[set[int], str]:
    """The lines that mypy refuses, and what it says."""
    program = folder / "program.py"
    program.write_text(text)
    # From here, with what `make check` knows already: alone it would read all of psycopg again.
    ran = subprocess.run([sys.executable, "-m", "mypy", str(program)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode in (0, 1), ran.stderr
    return {int(n) for n in re.findall(r"program\.py:(\d+): error", ran.stdout)}, ran.stdout + ran.stderr
