"""SAQ on Redis.

Settings:
- concurrency 100, 500 for jobs that wait, 25 for jobs that compute | saq docs, Worker
- ttl -1: results are not kept | saq docs, Job
- many are enqueued with concurrent calls of `enqueue`, 100 at a time: there is no bulk call | saq docs, Queue
"""

import asyncio

import common
from saq import Job, Queue, Worker

queue = Queue.from_url(common.REDIS or "redis://localhost", name="bench")


async def nothing(ctx, **job):
    await common.nothing(**job)


async def wait(ctx, **job):
    await common.wait(**job)


async def block(ctx, **job):
    common.block(**job)


def setup():
    pass


async def bulk(kind, jobs):
    for first in range(0, len(jobs), 100):
        await asyncio.gather(*(single(kind, job) for job in jobs[first : first + 100]))


async def single(kind, job):
    await queue.enqueue(Job(kind, kwargs=job, ttl=-1))


async def left():
    return await queue.count("incomplete")


async def work():
    worker = Worker(queue, functions=[nothing, wait, block], concurrency=common.concurrency(drain=100, io=500))
    await worker.start()


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
