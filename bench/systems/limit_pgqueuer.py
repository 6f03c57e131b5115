"""PgQueuer on asyncpg with uvloop, with a limit of the entrypoint.

Settings:
- concurrency_limit 10 of the entrypoint, which holds over all workers since 1.4 | pgqueuer repository, releases, v1.4.0
- batch_size 10: a worker asks for no more than the limit allows | pgqueuer docs, guides/performance-tuning
- asyncpg and its pool driver, uvloop | pgqueuer docs, guides/performance-tuning
- many jobs are enqueued with one `enqueue` of lists | pgqueuer docs, Queries
"""

import asyncio
import contextlib
import json
import signal

import asyncpg
import common
import use_pgqueuer
import uvloop
from pgqueuer import PgQueuer


async def setup():
    await use_pgqueuer.setup()


async def bulk(kind, jobs):
    await use_pgqueuer.bulk(kind, jobs)


async def single(kind, job):
    await use_pgqueuer.single(kind, job)


async def left():
    return await use_pgqueuer.left()


async def _work():
    pool = await asyncpg.create_pool(common.DSN, min_size=2, max_size=8)
    worker = PgQueuer.from_asyncpg_pool(pool)

    @worker.entrypoint("held", concurrency_limit=common.LIMIT)
    async def held(job):
        await common.held(**json.loads(job.payload))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    with contextlib.suppress(asyncio.CancelledError):
        await worker.run(batch_size=common.LIMIT)


def work():
    uvloop.run(_work())


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
