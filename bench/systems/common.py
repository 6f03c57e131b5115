"""What adapters in Python share: the three tasks, their stamps, and the orders of the harness. `common.mjs` is its twin.

An adapter gives these functions, blocking or async, and calls `main`:

    setup()               make the tables, if there are any
    bulk(kind, jobs)      enqueue many, in the fastest way its documentation names; `jobs` are dictionaries of arguments
    single(kind, job)     enqueue one
    left()                how many jobs its own store still holds as not done
    work()                run a worker until SIGTERM, often by becoming the peer's own command
    send(number)          signal a flow; adapters of flows only (`flow_common.py`)

Each job writes a stamp when it starts: when it was sent, when it started, in which process. 24 bytes, one write to a file in
memory, about 1 µs, the same for every system.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import os
import random
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

DSN = os.environ.get("BENCH_DSN", "")
REDIS = os.environ.get("BENCH_REDIS", "")
WORKLOAD = os.environ.get("BENCH_WORKLOAD", "drain")
BULK_JOBS, BULK_BYTES = 5000, 8_000_000
IO_SECONDS = 0.01
#: How many jobs of a queue may run at once, in all processes together; for adapters of limits.
LIMIT = int(os.environ.get("BENCH_LIMIT", "10"))
HASHES = int(os.environ.get("BENCH_HASHES", "6000"))

_STAMP = struct.Struct("<ddq")
_file = os.open(os.environ.get("BENCH_STAMPS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def stamp(sent: float) -> None:
    os.write(_file, _STAMP.pack(sent, time.time(), os.getpid()))


def burn() -> None:
    """A few milliseconds of computing that keeps the interpreter's lock."""
    digest = b""
    for _ in range(HASHES):
        digest = hashlib.sha256(digest).digest()


async def nothing(sent: float, pad: str = "") -> None:
    """What a queue costs by itself."""
    stamp(sent)


async def wait(sent: float, pad: str = "") -> None:
    """Wait for somebody else, as most jobs do."""
    stamp(sent)
    await asyncio.sleep(IO_SECONDS)


async def held(sent: float, pad: str = "") -> None:
    """Wait, and write a stamp of 1 at the start and one of -1 at the end: they say how many ran at once."""
    stamp(1.0)
    await asyncio.sleep(IO_SECONDS)
    stamp(-1.0)


def nothing_blocking(sent: float, pad: str = "") -> None:
    stamp(sent)


def wait_blocking(sent: float, pad: str = "") -> None:
    stamp(sent)
    time.sleep(IO_SECONDS)


def block(sent: float, pad: str = "") -> None:
    """Compute, without ever giving way."""
    stamp(sent)
    burn()


def concurrency(*, drain: int, io: int, cpu: int = 25) -> int:
    return {"io": io, "cpu": cpu}.get(WORKLOAD, drain)


def become(*command: str) -> None:
    """Be the peer's own worker command, from the environment that runs this file."""
    program = os.path.join(os.path.dirname(sys.executable), command[0])
    os.execv(program, [program, *command[1:]])


def main(*, setup, bulk, single, left, work, send=None) -> None:
    action = sys.argv[1]
    if action == "work":
        _finish(work())
    elif action == "setup":
        _finish(setup())
    elif action == "burn":
        for _ in range(int(sys.argv[2])):
            block(time.time())
    else:
        asyncio.run(_drive(bulk, single, left, send))


def _finish(outcome) -> None:
    if inspect.isawaitable(outcome):

        async def finish() -> None:
            await outcome

        asyncio.run(finish())


async def _drive(bulk, single, left, send) -> None:
    """Do what the harness writes to our standard input, a line of JSON each, and answer with one."""
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": True}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        try:
            answer = await _obey(order, bulk, single, left, send)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)


async def _obey(order, bulk, single, left, send):
    if order["do"] == "left":
        return {"left": await _call(left)}
    if order["do"] == "send":
        await _call(send, order["number"])
        return {}
    extra = {"pad": _pad(order["size"])} if order.get("size") else {}
    if order["do"] == "bulk":
        return await _bulk(bulk, order["kind"], order["jobs"], extra, order.get("size", 0))
    if order["do"] == "single":
        return await _single(single, order["kind"], order["seconds"], extra)
    return await _paced(single, order["kind"], order["rate"], order["seconds"], extra)


async def _call(function, *arguments):
    outcome = function(*arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome


async def _bulk(bulk, kind, jobs, extra, size):
    most = max(1, min(BULK_JOBS, BULK_BYTES // max(1, size)))
    begun = time.perf_counter()
    for first in range(0, jobs, most):
        await _call(bulk, kind, [{"sent": time.time(), **extra} for _ in range(min(most, jobs - first))])
    return {"jobs": jobs, "seconds": time.perf_counter() - begun}


async def _single(single, kind, seconds, extra):
    """One after the other, on one connection."""
    begun, jobs = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        await _call(single, kind, {"sent": time.time(), **extra})
        jobs += 1
    return {"jobs": jobs, "seconds": time.perf_counter() - begun}


async def _paced(single, kind, rate, seconds, extra):
    """At a steady rate, whether or not the one before has been answered; up to 8 on their way at a time."""
    begun, total, running = time.perf_counter(), int(rate * seconds), set()
    pool = None if inspect.iscoroutinefunction(single) else ThreadPoolExecutor(8)
    places = asyncio.Semaphore(8)

    async def send() -> None:
        async with places:
            job = {"sent": time.time(), **extra}
            if pool is None:
                await single(kind, job)
            else:
                await asyncio.get_running_loop().run_in_executor(pool, lambda: single(kind, {**job, "sent": time.time()}))

    for number in range(total):
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        task = asyncio.create_task(send())
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return {"jobs": total, "seconds": time.perf_counter() - begun}


def _pad(size: int) -> str:
    """Text that does not compress well, as real arguments do not."""
    return base64.b64encode(random.Random(1).randbytes(size * 3 // 4)).decode()
