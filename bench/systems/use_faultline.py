"""Faultline, with everything on: ledger, journal, heartbeats, fences.

Settings:
- `faultline worker` at its defaults, 50 jobs at a time; 500 for jobs that wait |
  docs/reference/python.md
- jobs that compute: executor="process", one process for each of the two workers | docs/how-to/cpu-bound.md
- many jobs are enqueued with `enqueue_many` | docs/reference/python.md
"""

import os
import subprocess
import sys

import common

from faultline import Faultline

app = Faultline(common.DSN)
TASKS = {function.__name__: app.task(queue="bench")(function) for function in (common.nothing, common.wait)}
TASKS["block"] = app.task(queue="bench", executor="process")(common.block)


def setup():
    subprocess.run(
        [sys.executable, "-m", "faultline", "migrate"], env={**os.environ, "FAULTLINE_DSN": common.DSN}, check=True
    )


async def bulk(kind, jobs):
    await app.aenqueue_many(TASKS[kind].bind(**job) for job in jobs)


async def single(kind, job):
    await TASKS[kind].aenqueue(**job)


async def left():
    async with app.async_database.connection() as connection:
        cursor = await connection.execute("select count(*) from faultline.open_jobs")
        return (await cursor.fetchone())[0]


def work():
    queue = f"bench={common.concurrency(drain=50, io=500, cpu=4)}"
    words = ["-m", "faultline", "worker", "use_faultline:app", "--queue", queue, "--task-processes", "1", "--quiet"]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
