"""PgQueuer on asyncpg with uvloop.

Settings:
- asyncpg and its pool driver, "for high-throughput deployments" | pgqueuer docs, guides/performance-tuning
- batch_size 500 ("increase when jobs are short-lived"), 250 with at most 500 running for jobs that wait, 25 with at
  most 50 for jobs that compute | pgqueuer docs, guides/performance-tuning
- uvloop, as its own benchmark does | pgqueuer repository, tools/benchmark.py
- durability at its default: logged tables | pgqueuer docs, guides/performance-tuning
- many jobs are enqueued with one `enqueue` of lists | pgqueuer docs, Queries
"""

import asyncio
import contextlib
import json
import signal

import asyncpg
import common
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

_open = {}


async def queries():
    if not _open:
        _open["pool"] = await asyncpg.create_pool(common.DSN, min_size=2, max_size=8)
        _open["queries"] = Queries(AsyncpgPoolDriver(_open["pool"]))
    return _open["queries"]


async def setup():
    connection = await asyncpg.connect(common.DSN)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def bulk(kind, jobs):
    many = len(jobs)
    await (await queries()).enqueue([kind] * many, [json.dumps(job).encode() for job in jobs], [0] * many)


async def single(kind, job):
    await (await queries()).enqueue(kind, json.dumps(job).encode())


async def left():
    await queries()
    return await _open["pool"].fetchval("select count(*) from pgqueuer")


async def _work():
    pool = await asyncpg.create_pool(common.DSN, min_size=2, max_size=8)
    worker = PgQueuer.from_asyncpg_pool(pool)

    @worker.entrypoint("nothing")
    async def nothing(job):
        await common.nothing(**json.loads(job.payload))

    @worker.entrypoint("wait")
    async def wait(job):
        await common.wait(**json.loads(job.payload))

    @worker.entrypoint("block")
    async def block(job):
        common.block(**json.loads(job.payload))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    batch = common.concurrency(drain=500, io=250)
    limit = common.concurrency(drain=0, io=500, cpu=50) or None
    with contextlib.suppress(asyncio.CancelledError):
        await worker.run(batch_size=batch, max_concurrent_tasks=limit)


def work():
    uvloop.run(_work())


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
