"""Chancy.

Settings:
- the async executor, "for running large numbers of IO-bound jobs"; the process executor (its default) for jobs that
  compute | chancy docs, Executors
- concurrency 100, 500 for jobs that wait, 1 process for jobs that compute | chancy docs, Queue
- eager_polling: fetch again as soon as a job is done; polling_interval 1 s | chancy docs, Queue
- many jobs are enqueued with `push_many`, in batches of 1,000 (its default) | chancy docs, Chancy.push_many
"""

import common
from chancy import Chancy, Job, Queue, Worker, job

nothing = job(queue="bench")(common.nothing)
wait = job(queue="bench")(common.wait)
block = job(queue="bench")(common.block)
TASKS = {"nothing": nothing, "wait": wait, "block": block}
_open = []


async def chancy():
    if not _open:
        app = Chancy(common.DSN)
        await app.pool.open()
        _open.append(app)
    return _open[0]


async def setup():
    async with Chancy(common.DSN) as app:
        await app.migrate()


def _job(kind, arguments):
    return Job.from_func(TASKS[kind], queue="bench", kwargs=arguments)


async def bulk(kind, jobs):
    app = await chancy()
    async for _ in app.push_many([_job(kind, arguments) for arguments in jobs]):
        pass


async def single(kind, arguments):
    await (await chancy()).push(_job(kind, arguments))


async def left():
    async with (await chancy()).pool.connection() as connection:
        cursor = await connection.execute("select count(*) from chancy_jobs where completed_at is null")
        return (await cursor.fetchone())[0]


async def work():
    async with Chancy(common.DSN) as app:
        computes = common.WORKLOAD == "cpu"
        queue = Queue(
            "bench",
            concurrency=common.concurrency(drain=100, io=500, cpu=1),
            executor=Chancy.Executor.Process if computes else Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=True,
        )
        await app.declare(queue, upsert=True)
        async with Worker(app) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
