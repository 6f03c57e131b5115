"""Procrastinate on psycopg's async pool.

Settings:
- concurrency 100, 500 for jobs that wait, 25 for jobs that compute | procrastinate docs, howto/production/concurrency
- a pool of 20 connections for the worker | procrastinate docs, howto/basics/connector
- `delete_jobs=successful`: finished jobs do not pile up | procrastinate docs, howto/production/delete_finished_jobs
- many jobs are enqueued with `batch_defer_async` | procrastinate docs, howto/advanced/batch
"""

import common
import procrastinate

connector = procrastinate.PsycopgConnector(conninfo=common.DSN, min_size=2, max_size=20)
app = procrastinate.App(connector=connector)
TASKS = {
    function.__name__: app.task(name=function.__name__)(function) for function in (common.nothing, common.wait, common.block)
}
_open = []


async def opened():
    if not _open:
        _open.append(await app.open_async())
    return app


async def setup():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def bulk(kind, jobs):
    await opened()
    await TASKS[kind].batch_defer_async(*jobs)


async def single(kind, job):
    await opened()
    await TASKS[kind].defer_async(**job)


async def left():
    await opened()
    row = await connector.execute_query_one_async(
        "select count(*) as open from procrastinate_jobs where status in ('todo', 'doing')"
    )
    return row["open"]


async def work():
    async with app.open_async():
        await app.run_worker_async(concurrency=common.concurrency(drain=100, io=500), delete_jobs="successful")


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
