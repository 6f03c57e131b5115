"""A program that both builds run: tasks for their workers, and a producer. It uses only what both know."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import psycopg

from faultline import BlockingJob, Faultline, Job

if TYPE_CHECKING:
    from faultline import JobHandle, Task

app = Faultline()
_CROWD = 6
ORDER = "insert into orders (job_id) values (%s)"


@app.task
async def plain(number: int) -> int:
    return number


@app.task
async def pay(job: Job) -> None:
    async with job.transaction() as tx:
        await tx.execute(ORDER, (job.id,))
        tx.complete()


@app.task
def pay_blocking(job: BlockingJob) -> None:
    with job.transaction() as tx:
        tx.execute(ORDER, (job.id,))
        tx.complete()


@app.task
async def stepped(job: Job) -> list[int]:
    first = await job.step("first", lambda: 1)
    await job.progress({"first": first})
    async with job.transaction() as tx:

        async def order() -> int:
            await tx.execute(ORDER, (job.id,))
            return 2

        second = await job.step("second", order)
    return [first, second]


@app.task(backoff=lambda _: 0.1)
async def flaky(job: Job) -> int:
    if job.attempt == 1:
        raise ValueError("the first attempt fails")
    return job.attempt


@app.task(lease=5)
async def long(seconds: float) -> None:
    """Longer than its lease: it lives by its heartbeats."""
    await asyncio.sleep(seconds)


@app.task
async def endless() -> None:
    await asyncio.Event().wait()


def produce(prefix: str) -> None:
    """Submit, until standard input ends. Prints a line for each job that was acknowledged."""
    ended = threading.Event()
    threading.Thread(target=_watch_input, args=(ended,), daemon=True).start()
    with psycopg.connect(app.dsn) as connection:
        for number in itertools.count():
            if ended.is_set():
                break
            _submit(connection, f"{prefix}-{number}", number)
            time.sleep(0.02)


def produce_in_a_crowd(prefix: str) -> None:
    """Submit from several threads, with and without keys, until standard input ends. An error of one ends the program."""
    ended = threading.Event()
    threading.Thread(target=_watch_input, args=(ended,), daemon=True).start()
    with ThreadPoolExecutor(_CROWD) as threads:
        crowd = [threads.submit(_submit_plain, f"{prefix}-{member}", member % 2 == 0, ended) for member in range(_CROWD)]
        for member in as_completed(crowd):
            ended.set()
            member.result()


def _submit_plain(prefix: str, keyed: bool, ended: threading.Event) -> None:  # noqa: FBT001 - one of two kinds
    for number in itertools.count():
        if ended.is_set():
            break
        task = plain.options(idempotency_key=f"{prefix}-{number}") if keyed else plain
        acknowledged(plain, task.enqueue(number))
        time.sleep(0.005)


def _watch_input(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _submit(connection: psycopg.Connection, key: str, number: int) -> None:
    tasks: tuple[Task[..., Any], ...] = (plain, pay, pay_blocking, stepped, flaky)
    task = tasks[number % len(tasks)]
    arguments = {"number": number} if number % len(tasks) == 0 else {}
    handle = task.options(idempotency_key=key).enqueue(**arguments)
    acknowledged(task, handle)
    again = task.options(idempotency_key=key).enqueue(**arguments)
    assert (again.id, again.created) == (handle.id, False)
    with connection.transaction():
        handle = plain.using(connection).enqueue(number)
    acknowledged(plain, handle)
    if number % 50 == 7:
        acknowledged(long, long.enqueue(6.0))
        handle = endless.enqueue()
        while handle.job().state == "queued":
            time.sleep(0.01)
        app.cancel(handle.id, "enough")
        acknowledged(endless, handle)


def acknowledged(task: Task[..., Any], handle: JobHandle[Any]) -> None:
    print(f"{task.name} {handle.id}\n", end="", flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    {"alone": produce, "crowd": produce_in_a_crowd}[sys.argv[2]](sys.argv[1])
