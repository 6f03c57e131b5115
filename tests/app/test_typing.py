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
from typing import assert_type
from psycopg import AsyncConnection, Connection
from faultline import Faultline, Job, JobHandle, Retention, Submission, Task, Transaction, Worker, WorkerOptions

app = Faultline("x")

@app.task(queue="mail", max_attempts=5, lease=30)
async def charge(job: Job, order_id: int, note: str = "") -> dict[str, int]:
    return {}

@app.task
def ship(order_id: int) -> str:
    return ""

async def good(blocking: Connection, waiting: AsyncConnection) -> None:
    assert_type(charge.enqueue(42), JobHandle[dict[str, int]])
    assert_type(ship.options(delay=60).enqueue(order_id=42), JobHandle[str])
    assert_type(charge.enqueue(42).result(timeout=3), dict[str, int])
    assert_type(await charge.aenqueue(42, note="n"), JobHandle[dict[str, int]])
    charge.enqueue(42, conn=blocking)
    await charge.aenqueue(42, conn=waiting)
    app.enqueue_many(ship.bind(n) for n in range(3))
    assert_type(ship.bind(1), Submission)
    assert_type(app.worker({"mail": 50}, grace_seconds=5, retention=Retention(ledger=3600)), Worker)
    options: WorkerOptions = {"silence_seconds": 60.0}
    app.run_worker(**options)

async def write(job: Job) -> None:
    async with job.transaction() as tx:
        assert_type(tx, Transaction)

def bad(waiting: AsyncConnection) -> None:
    charge.enqueue("42")  # refused: str for int
    charge.enqueue()  # refused: missing
    charge.enqueue(42, colour="red")  # refused: unknown
    ship.bind(1, 2)  # refused: too many
    ship.options(delai=60)  # refused: unknown option
    ship.options(priority="high")  # refused: str for int
    ship.enqueue(1, conn=waiting)  # refused: async connection
    x: int = ship.enqueue(1).result()  # refused: result is str
    app.worker(grace=5)  # refused: unknown option
    app.worker(grace_seconds="5")  # refused: str for float
    app.run_worker({"mail": "50"})  # refused: str for int
    app.run_worker(retention=3600)  # refused: a number for Retention
"""


def test_a_type_checker_accepts_right_arguments_and_refuses_wrong_ones(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    wanted = {n for n, line in enumerate(PROGRAM.splitlines(), start=1) if "# refused" in line}

    # From here, with what `make check` knows already: alone it would read all of psycopg again.
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)], capture_output=True, text=True, check=False, cwd=ROOT
    )

    refused = {int(n) for n in re.findall(r"program\.py:(\d+): error", checked.stdout)}
    assert refused == wanted, checked.stdout + checked.stderr
