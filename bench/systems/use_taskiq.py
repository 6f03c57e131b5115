"""Taskiq on Redis streams, the broker with acknowledgements.

Settings:
- one worker process, --max-async-tasks 100 (the default), 500 for jobs that wait, 25 for jobs that compute |
  taskiq-python.github.io, guide/cli
- --max-prefetch as many again | taskiq-python.github.io, guide/cli
- uvloop, which it uses when installed | taskiq-python.github.io, guide/cli
- no result backend (the default) | taskiq-python.github.io, available-components/result-backends
- many are enqueued with concurrent calls of `kiq`, 100 at a time: there is no bulk call | taskiq-python.github.io,
  guide
"""

import asyncio

import common
import redis.asyncio
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(common.REDIS or "redis://localhost", queue_name="bench")
FUNCTIONS = {"nothing": common.nothing, "wait": common.wait, "block": common.block}
TASKS = {kind: broker.register_task(function, task_name=kind) for kind, function in FUNCTIONS.items()}
_open = []


async def opened():
    if not _open:
        _open.append(None)
        await broker.startup()
        _open[0] = redis.asyncio.Redis.from_url(common.REDIS)
    return _open[0]


def setup():
    pass


async def bulk(kind, jobs):
    await opened()
    for first in range(0, len(jobs), 100):
        await asyncio.gather(*(single(kind, job) for job in jobs[first : first + 100]))


async def single(kind, job):
    await opened()
    await TASKS[kind].kiq(**job)


async def left():
    groups = await (await opened()).xinfo_groups("bench")
    return sum(group["pending"] + (group["lag"] or 0) for group in groups)


def work():
    many = str(common.concurrency(drain=100, io=500))
    flags = ("--workers", "1", "--max-async-tasks", many, "--max-prefetch", many, "--log-level", "ERROR")
    threads = ("--max-threadpool-threads", "1")
    common.become("taskiq", "worker", "use_taskiq:broker", *flags, *threads)


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
