"""Faultline, a queue with a limit over all workers.

Settings:
- `app.queue("bench", concurrency=10)`; each worker has as many slots | docs/how-to/limits.md
- many jobs are enqueued with `enqueue_many` | docs/reference/python.md
"""

import os
import subprocess
import sys

import common

from faultline import Faultline

app = Faultline(common.DSN)
app.queue("bench", concurrency=common.LIMIT)
TASK = app.task(queue="bench")(common.held)


def setup():
    subprocess.run(
        [sys.executable, "-m", "faultline", "migrate"], env={**os.environ, "FAULTLINE_DSN": common.DSN}, check=True
    )


async def bulk(kind, jobs):
    await app.aenqueue_many(TASK.bind(**job) for job in jobs)


async def single(kind, job):
    await bulk(kind, [job])


async def left():
    async with app.async_database.connection() as connection:
        cursor = await connection.execute("select count(*) from faultline.open_jobs")
        return (await cursor.fetchone())[0]


def work():
    words = ["-m", "faultline", "worker", "limit_faultline:app", "--queue", f"bench={common.LIMIT}", "--quiet"]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
