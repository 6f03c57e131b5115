"""Awa (awa-pg), its Rust core with handlers in Python.

Settings:
- 100 workers on the queue, 500 for jobs that wait, 25 for jobs that compute | awa docs, configuration
- queue storage, "install and activate" | awa-pg, `install_queue_storage`
- poll_interval_ms at its default 200: LISTEN/NOTIFY wakes the worker | awa docs, configuration
- many jobs are enqueued with `enqueue_many_copy` | awa-pg README, "COPY ingestion"
"""

import asyncio
import signal
from dataclasses import dataclass

import awa
import common


@dataclass
class Nothing:
    sent: float
    pad: str = ""


@dataclass
class Wait:
    sent: float
    pad: str = ""


@dataclass
class Block:
    sent: float
    pad: str = ""


KINDS = {"nothing": Nothing, "wait": Wait, "block": Block}
_open = []


def client():
    if not _open:
        _open.append(awa.AsyncClient(common.DSN.replace("@/", "@localhost/")))
    return _open[0]


async def setup():
    await client().migrate()
    await client().install_queue_storage()
    await client().close()


async def bulk(kind, jobs):
    await client().enqueue_many_copy([KINDS[kind](**job) for job in jobs], queue="bench")


async def single(kind, job):
    await client().insert(KINDS[kind](**job), queue="bench")


async def left():
    # Without statistics its own count takes 10 s and more after a few thousand jobs.
    async with await client().transaction() as transaction:
        await transaction.execute("analyze")
    stats = [stat for stat in await client().queue_stats() if stat.queue == "bench"]
    return sum(stat.available + stat.running + stat.scheduled + stat.retryable for stat in stats)


async def work():
    app = client()

    @app.task(Nothing, queue="bench")
    async def nothing(job):
        common.stamp(job.args.sent)

    @app.task(Wait, queue="bench")
    async def wait(job):
        await common.wait(job.args.sent)

    @app.task(Block, queue="bench")
    async def block(job):
        common.block(job.args.sent)

    await app.start([("bench", common.concurrency(drain=100, io=500))])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await app.shutdown()


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
