"""DBOS's workflows and steps, on a queue.

Settings:
- polling_interval_sec of the queue 0.05 instead of 1 | docs.dbos.dev, python/reference/queues
- worker_concurrency 100 | docs.dbos.dev, python/tutorials/queue-tutorial
- sys_db_pool_size 20 (the default), LISTEN/NOTIFY on (the default) | docs.dbos.dev, python/reference/configuration
- async workflows and steps; blocking ones took as long | docs.dbos.dev, python/tutorials/workflow-tutorial
- children with `start_workflow_async` and `get_result`, gathered: they run in the parent's process and are not polled
  for; children on a queue took as long, blocking ones longer | docs.dbos.dev, python/reference/contexts
- many flows are enqueued in one transaction, with `enqueue_in_transaction` | docs.dbos.dev, python/reference/client
- after `kill -9`: without its Conductor, which is a service; a process that is launched recovers the workflows of the
  executor with its id. Two processes have two ids, and one that is started again has the id of its
  predecessor | docs.dbos.dev, production/self-hosting/workflow-recovery
"""

import asyncio
import os
import signal
import threading
import time

import common
import flow_common
import sqlalchemy
from dbos import DBOS, DBOSClient

_open = []
URL = common.DSN.replace("postgresql://", "postgresql+psycopg://")


def client():
    if not _open:
        _open.append((DBOSClient(system_database_url=common.DSN), sqlalchemy.create_engine(URL)))
    return _open[0]


@DBOS.step()
async def stamped(sent):
    common.stamp(sent)
    return sent


@DBOS.step()
async def plain(number):
    return number


@DBOS.step()
async def recorded(number):
    return flow_common.recorded(number)


@DBOS.step()
async def endless(number):
    if not flow_common.was_begun(number):
        await asyncio.sleep(flow_common.FOREVER_SECONDS)


@DBOS.workflow(name="child")
async def child(of):
    return of


@DBOS.workflow(name="steps")
async def steps(sent, number):
    for _ in range(flow_common.STEPS):
        await stamped(sent)


@DBOS.workflow(name="short")
async def short(sent, number):
    await stamped(0.0)
    await DBOS.sleep_async(flow_common.NAP_SECONDS)
    await plain(2)
    await stamped(sent)


@DBOS.workflow(name="fan")
async def fan(sent, number):
    handles = await asyncio.gather(*[DBOS.start_workflow_async(child, of) for of in range(flow_common.CHILDREN)])
    results = await asyncio.gather(*[handle.get_result() for handle in handles])
    common.stamp(sent)
    return sum(results)


@DBOS.workflow(name="answer")
async def answer(sent, number):
    await stamped(0.0)
    common.stamp(await DBOS.recv_async("go", timeout_seconds=600))


@DBOS.workflow(name="killed")
async def killed(sent, number):
    await recorded(number)
    await endless(number)


def launch():
    config = {"name": "bench", "system_database_url": common.DSN, "log_level": "WARNING", "application_version": "1"}
    DBOS(config={**config, "executor_id": os.environ.get("BENCH_WORKER", "0")})
    DBOS.launch()


def setup():
    launch()
    DBOS.destroy()


def bulk(kind, jobs):
    dbos, engine = client()
    with engine.begin() as connection:
        for flow in flow_common.numbered(jobs):
            options = {"queue_name": "bench", "workflow_name": kind, "app_version": "1"}
            options["workflow_id"] = f"flow-{flow['number']}"
            dbos.enqueue_in_transaction(connection, options, **flow)


def single(kind, job):
    bulk(kind, [job])


def send(number):
    client()[0].send(f"flow-{number}", time.time(), "go")


def left():
    with client()[1].connect() as connection:
        question = "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"
        return connection.execute(sqlalchemy.text(question)).scalar()


def work():
    launch()
    DBOS.register_queue("bench", worker_concurrency=100, polling_interval_sec=0.05)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work, send=send)
