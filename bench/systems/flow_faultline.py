"""Faultline's flows, with everything on: ledger, journal, heartbeats, fences.

Settings:
- `faultline worker` at its defaults, 50 jobs at a time: a flow that waits holds no place | docs/reference/python.md
- many flows are enqueued with `enqueue_many`; children with `job.map` | docs/how-to/map-reduce.md
- after `kill -9`: at its defaults; the other workers notice the death of the process | docs/reference/settings.md
"""

import asyncio
import os
import subprocess
import sys
import time

import common
import flow_common

from faultline import Faultline, Job

app = Faultline(common.DSN)
_ids = {}


@app.step
async def stamped(sent: float) -> float:
    common.stamp(sent)
    return sent


@app.step
async def plain(number: int) -> int:
    return number


@app.step
async def recorded(number: int) -> int:
    return flow_common.recorded(number)


@app.step
async def endless(number: int) -> None:
    if not flow_common.was_begun(number):
        await asyncio.sleep(flow_common.FOREVER_SECONDS)


@app.task(queue="bench")
async def child(of: int) -> int:
    return of


@app.task(queue="bench")
async def steps(job: Job, sent: float, number: int) -> None:
    for _ in range(flow_common.STEPS):
        await job.do(stamped, sent)


@app.task(queue="bench")
async def short(job: Job, sent: float, number: int) -> None:
    await job.do(stamped, 0.0)
    await job.sleep(flow_common.NAP_SECONDS)
    await job.do(plain, 2)
    await job.do(stamped, sent)


@app.task(queue="bench")
async def fan(job: Job, sent: float, number: int) -> int:
    results = await job.map(child, range(flow_common.CHILDREN))
    common.stamp(sent)
    return sum(results)


@app.task(queue="bench")
async def answer(job: Job, sent: float, number: int) -> None:
    await job.do(stamped, 0.0)
    common.stamp(await job.receive("go", float))


@app.task(queue="bench")
async def killed(job: Job, sent: float, number: int) -> None:
    await job.do(recorded, number)
    await job.do(endless, number)


PROGRAMS = {"steps": steps, "short": short, "fan": fan, "answer": answer, "killed": killed}


def setup():
    subprocess.run(
        [sys.executable, "-m", "faultline", "migrate"], env={**os.environ, "FAULTLINE_DSN": common.DSN}, check=True
    )


async def bulk(kind, jobs):
    flows = flow_common.numbered(jobs)
    handles = await app.aenqueue_many(PROGRAMS[kind].bind(**flow) for flow in flows)
    _ids.update(zip((flow["number"] for flow in flows), (handle.id for handle in handles), strict=True))


async def single(kind, job):
    await bulk(kind, [job])


async def send(number):
    await app.asignal(_ids[number], "go", time.time())


async def left():
    async with app.async_database.connection() as connection:
        cursor = await connection.execute("select count(*) from faultline.open_jobs")
        return (await cursor.fetchone())[0]


def work():
    words = ["-m", "faultline", "worker", "flow_faultline:app", "--queue", "bench=50", "--quiet"]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work, send=send)
