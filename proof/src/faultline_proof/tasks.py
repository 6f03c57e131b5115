"""The tasks that drills and figures run in real worker processes. The database is named by FAULTLINE_DSN."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import signal
import time
from pathlib import Path

from faultline.app.application import Faultline
from faultline.app.blocking_job import BlockingJob  # noqa: TC001 - looked at when the task is registered
from faultline.app.job import Job  # noqa: TC001 - looked at when the task is registered


async def nothing() -> None:
    """What a queue costs by itself."""


async def wait(seconds: float) -> None:
    """A job that waits for somebody else, as most do."""
    await asyncio.sleep(seconds)


def wait_in_thread(seconds: float) -> None:
    """`wait` as a blocking task."""
    time.sleep(seconds)


async def stamp() -> float:
    """Say when it was started."""
    return time.time()


async def dawdle(job: Job, seconds: float) -> dict[str, int]:
    """Take its time in the first epoch and none in later ones; say which one it was."""
    if job.fencing_token == 1:
        await asyncio.sleep(seconds)
    return {"token": job.fencing_token}


async def apply(job: Job, account: int, barrier: str = "", patience: float = 60.0) -> None:
    """An effect and the completion in one transaction. The drill has made the table.

    In its first epoch it can be held back at a barrier in between, and the server's patience with it be shortened.
    """
    async with job.transaction() as tx:
        await tx.execute("insert into effects values (%s, %s, %s)", (job.id, account, job.fencing_token))
        if barrier and job.fencing_token == 1:
            await tx.execute("select set_config('idle_in_transaction_session_timeout', %s, true)", (f"{patience}s",))
            await tx.execute("select pg_advisory_xact_lock_shared(hashtext(%s))", (barrier,))
        tx.complete({"account": account})


def apply_in_thread(job: BlockingJob, account: int, barrier: str = "", patience: float = 60.0) -> None:
    """`apply` as a blocking task."""
    with job.transaction() as tx:
        tx.execute("insert into effects values (%s, %s, %s)", (job.id, account, job.fencing_token))
        if barrier and job.fencing_token == 1:
            tx.execute("select set_config('idle_in_transaction_session_timeout', %s, true)", (f"{patience}s",))
            tx.execute("select pg_advisory_xact_lock_shared(hashtext(%s))", (barrier,))
        tx.complete({"account": account})


async def credit(job: Job, account: int, seconds: float = 0.0) -> None:
    """Like `apply`, after a while; what went wrong is tried again at once."""
    await asyncio.sleep(seconds)
    await apply(job, account)


def credit_in_thread(job: BlockingJob, account: int, seconds: float = 0.0) -> None:
    """`credit` as a blocking task."""
    time.sleep(seconds)
    apply_in_thread(job, account)


async def blob(size: int) -> str:
    """A large result that cannot be compressed."""
    return os.urandom(size // 2).hex()


async def deadline(job: Job, seconds: float) -> str:
    """Say when this attempt is to be over, by the clock of the worker."""
    await asyncio.sleep(seconds)
    return str(job.deadline)


async def always_fail() -> None:
    raise RuntimeError("as always")


async def poison() -> None:
    """Kill whoever runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


def hog(seconds: float) -> None:
    """Keep the interpreter busy, as a long computation in Python does."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        sum(range(20_000))


def seize(job: BlockingJob, file: str) -> int:
    """In the first epoch hold the interpreter in one call, as a C extension that never lets go of it: until the drill
    unlocks the file. Say which epoch it was.
    """
    if job.fencing_token == 1:
        with Path(file).open() as locked:
            ctypes.PyDLL(None).flock(locked.fileno(), fcntl.LOCK_SH)
    return job.fencing_token


async def answer(job: Job) -> float:
    """Wait for a signal, and say when it was received."""
    await job.receive("go", object)
    return time.time()


def register_flows(app: Faultline) -> None:
    """Flows whose cost is measured."""

    @app.step
    async def noted(of: int) -> int:
        return of

    @app.task
    async def fan_out(job: Job, children: int) -> int:
        return len(await job.map(one_of_many, range(children)))

    @app.task
    async def one_of_many(of: int) -> None:
        """A child that does nothing."""

    @app.task
    async def one_child(job: Job) -> None:
        await job.call(one_of_many, 0)

    @app.task
    async def ten_steps(job: Job) -> int:
        return sum([await job.do(noted, number) for number in range(10)])

    @app.task
    async def step_and_dawdle(job: Job, seconds: float) -> float:
        """Take its time after a step in the first epoch; say when the last one began."""
        await job.do(noted, 1)
        begun = time.time()
        if job.fencing_token == 1:
            await asyncio.sleep(seconds)
        return begun


WITH_EFFECT = frozenset(task.__name__ for task in (apply, apply_in_thread, credit, credit_in_thread))


def register(app: Faultline) -> None:
    """Make them tasks of this application."""
    for task in (nothing, wait, wait_in_thread, stamp, apply, apply_in_thread, blob, hog, seize, answer):
        app.task(task)
    register_flows(app)
    app.task(lease=1)(dawdle)
    app.task(backoff=lambda _: 0.05)(credit)
    app.task(backoff=lambda _: 0.05)(credit_in_thread)
    app.task(timeout=60)(deadline)
    app.task(max_attempts=3, backoff=lambda attempt: 0.1 * attempt)(always_fail)
    app.task(lease=1, max_attempts=2)(poison)


app = Faultline()
register(app)
