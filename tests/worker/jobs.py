"""Tasks for worker processes in tests. What they wait for is in the database, so that tests decide and nothing sleeps."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from faultline import BlockingJob, Faultline, Job

if TYPE_CHECKING:
    from collections.abc import Callable

app = Faultline()
PATIENCE = 40.0


@app.task
async def note(n: int) -> int:
    return n


@app.task(lease=3, backoff=lambda _: 0)
async def survive(job: Job) -> int:
    """Hang in the first epoch, return in any later one."""
    if job.fencing_token == 1:
        await asyncio.Event().wait()
    return job.fencing_token


@app.task(lease=3, max_attempts=2)
async def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(lease=3, max_attempts=2)
async def innocent(n: int) -> int:
    return n


@app.task
async def handle_signals() -> None:
    """As a server inside a task does: it takes the signals, and leaves them to nobody."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)
        loop.remove_signal_handler(number)


@app.task
async def endless() -> None:
    await asyncio.Event().wait()


@app.task
async def stubborn() -> None:
    """Ignore being cancelled, as code with a bare `except` in a loop does."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@app.task(timeout=0.2, max_attempts=1)
def stuck() -> None:
    """Outlive the timeout in a thread."""
    threading.Event().wait()


@app.task
async def nap(seconds: float) -> None:
    sys.stderr.write("the nap has begun\n")
    await asyncio.sleep(seconds)


@app.task(lease=5)
async def seize(seconds: int) -> None:
    """Hold the interpreter in one call, as a C extension that never lets go of it."""
    ctypes.PyDLL(None).sleep(seconds)


@app.task
async def block(job: Job, seconds: float) -> int:
    """Block the event loop in the first epoch, as a blocking call in an async task does."""
    if job.fencing_token == 1:
        time.sleep(seconds)  # noqa: ASYNC251 - on purpose
    return job.fencing_token


@app.task(max_attempts=2, backoff=lambda _: 0)
async def block_always() -> None:
    time.sleep(600)  # noqa: ASYNC251 - on purpose


@app.task(timeout=1)
async def block_within(job: Job, seconds: float) -> int:
    """The same, with a timeout that cannot take effect."""
    if job.fencing_token == 1:
        time.sleep(seconds)  # noqa: ASYNC251 - on purpose
    return job.fencing_token


@app.task
async def grind(seconds: float) -> None:
    """Hold the interpreter for longer than any test waits, whatever signals come."""
    sum(range(int(seconds * 10**9)))


@app.task(max_attempts=1)
def fork_and_end(number: int) -> list[int | None]:
    """Start processes as `multiprocessing` does by default on Linux, and end them by a signal."""
    children = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(PATIENCE,)) for _ in range(number)]
    for child in children:
        child.start()
        child.terminate()  # at once: the child has hardly begun to run
    for child in children:
        child.join(PATIENCE / 4)
        child.kill()
        child.join()
    return [child.exitcode for child in children]


@app.task(max_attempts=1)
def fork_and_interrupt() -> int | None:
    """Start a process that dies of Ctrl-C as any Python program does."""
    reading, writing = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_interrupted, args=(writing,))
    child.start()
    os.read(reading, 1)
    os.kill(child.pid or 0, signal.SIGINT)
    child.join(PATIENCE / 4)
    child.kill()
    child.join()
    return child.exitcode


@app.task(max_attempts=1)
def fork_and_leave() -> int:
    """Leave a process behind that lives longer than the worker."""
    child = os.fork()
    if child == 0:
        time.sleep(3 * PATIENCE)
        os._exit(0)
    return child


@app.task(max_attempts=1)
def fork_and_come_back(how: str) -> int | None:
    """Fork, and let the child leave the task as its parent would. Answers with the child's exit code."""
    child = os.fork()
    if child == 0:
        return _leave(how)
    give_up = time.monotonic() + PATIENCE / 4
    while (code := _exit_code(child, give_up)) == _LIVES:
        time.sleep(0.01)
    return code


@app.task(max_attempts=1)
async def afork_and_come_back(how: str) -> int | None:
    child = os.fork()
    if child == 0:
        return _leave(how)
    give_up = time.monotonic() + PATIENCE / 4
    while (code := _exit_code(child, give_up)) == _LIVES:
        await asyncio.sleep(0.01)
    return code


@app.task(max_attempts=1)
async def afork_in_a_branch(how: str) -> int | None:
    """The same in a branch, which others wait for and beside which others run."""
    parent = os.getpid()

    def ran_in_the_child() -> None:
        if os.getpid() != parent:
            os._exit(99)

    loop = asyncio.get_running_loop()
    readable, wire = socket.socketpair()
    wire.send(b"x")

    async def branch() -> int:
        loop.call_soon(ran_in_the_child)
        loop.call_later(0.001, ran_in_the_child)
        child = os.fork()
        if child:
            return child
        time.sleep(0.01)  # noqa: ASYNC251 - until the timer is due in the child
        return _leave(how)

    loop.add_reader(readable, ran_in_the_child)
    forked = asyncio.create_task(branch())
    forked.add_done_callback(lambda _: ran_in_the_child())
    child = await forked
    loop.remove_reader(readable)
    readable.close()
    wire.close()
    ran_in_the_child()
    give_up = time.monotonic() + PATIENCE / 4
    while (code := _exit_code(child, give_up)) == _LIVES:
        await asyncio.sleep(0.01)
    return code


_LIVES = -1000


def _leave(how: str) -> int:
    if how == "raise":
        raise ValueError("in the child")
    if how.startswith("exit"):
        sys.exit(int(how.removeprefix("exit") or 0))
    return 7


def _exit_code(child: int, give_up: float) -> int | None:
    """None for a child that does not end."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        return os.waitstatus_to_exitcode(status)
    if time.monotonic() < give_up:
        return _LIVES
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@app.task(max_attempts=1)
def fork_and_write(job: BlockingJob) -> str:
    """What a child is told that writes through its parent's job."""

    def write() -> None:
        with job.transaction():
            pass

    write()
    told = []
    for use in (write, job.fence, lambda: job.step("s", int), lambda: job.progress(1)):
        reading, writing = os.pipe()
        if os.fork() == 0:
            _tell(writing, use)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told.append(pipe.read())
    write()
    return "\n".join(told)


@app.task(max_attempts=1)
async def afork_and_write(job: Job) -> str:
    async def write() -> None:
        async with job.transaction():
            pass

    await write()
    told = []
    for use in (write, job.fence, lambda: job.step("s", int), lambda: job.progress(1)):
        reading, writing = os.pipe()
        if os.fork() == 0:
            _tell(writing, lambda: use().send(None))  # noqa: B023 - called at once
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told.append(pipe.read())
    await write()
    return "\n".join(told)


def _tell(pipe: int, use: Callable[[], object]) -> NoReturn:
    try:
        use()
        os.write(pipe, b"written")
    except BaseException as error:  # noqa: BLE001
        os.write(pipe, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(0)


def _interrupted(ready: int) -> None:
    try:
        os.write(ready, b".")
        time.sleep(PATIENCE)
    except KeyboardInterrupt:
        os._exit(130)


@app.task(max_attempts=2, backoff=lambda _: 0)
async def end_loop(how: str) -> None:
    """End the event loop, as asyncio lets any branch do."""

    async def branch() -> None:
        if how == "exit":
            sys.exit(3)
        raise KeyboardInterrupt

    if how == "stop":
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        raise RuntimeError("the loop goes on")
    async with asyncio.TaskGroup() as group:
        group.create_task(branch())


@app.task(lease=3, max_attempts=2)
async def sweep(what: str = "everything") -> None:
    """Cancel what runs in this loop, as many a snippet for tidying up does."""
    main = next(task for task in asyncio.all_tasks() if "_run" in repr(task.get_coro()) and "process.py" in repr(task))
    swept = {"everything": asyncio.all_tasks(), "main": {main}, "others": asyncio.all_tasks() - {main}}[what]
    for task in swept - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.2)
