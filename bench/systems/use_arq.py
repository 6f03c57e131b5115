"""arq.

Settings:
- max_jobs 100, 500 for jobs that wait, 25 for jobs that compute | arq-docs.helpmanual.io, Worker
- poll_delay 0.01 s instead of 0.5 | arq-docs.helpmanual.io, Worker
- keep_result 0: results are not kept | arq-docs.helpmanual.io, Worker
- many are enqueued with concurrent calls of `enqueue_job`, 100 at a time: there is no bulk call |
  arq-docs.helpmanual.io, Usage
"""

import asyncio

import common
from arq import create_pool, run_worker
from arq.connections import RedisSettings
from arq.constants import default_queue_name

SETTINGS = RedisSettings.from_dsn(common.REDIS or "redis://localhost")
_open = []


async def nothing(ctx, **job):
    await common.nothing(**job)


async def wait(ctx, **job):
    await common.wait(**job)


async def block(ctx, **job):
    common.block(**job)


class WorkerSettings:
    functions = (nothing, wait, block)
    redis_settings = SETTINGS
    max_jobs = common.concurrency(drain=100, io=500)
    poll_delay = 0.01
    keep_result = 0


async def pool():
    if not _open:
        _open.append(await create_pool(SETTINGS))
    return _open[0]


def setup():
    pass


async def bulk(kind, jobs):
    for first in range(0, len(jobs), 100):
        await asyncio.gather(*(single(kind, job) for job in jobs[first : first + 100]))


async def single(kind, job):
    await (await pool()).enqueue_job(kind, **job)


async def left():
    return await (await pool()).zcard(default_queue_name)


def work():
    asyncio.set_event_loop(asyncio.new_event_loop())
    run_worker(WorkerSettings)


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
