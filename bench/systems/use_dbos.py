"""DBOS, a workflow of one step on a queue.

Settings:
- polling_interval_sec 0.05 instead of 1 | docs.dbos.dev, python/reference/queues
- worker_concurrency 100, 500 for jobs that wait, 25 for jobs that compute | docs.dbos.dev,
  python/tutorials/queue-tutorial
- sys_db_pool_size 20 (the default) | docs.dbos.dev, python/reference/configuration
- it has no bulk enqueue: many are enqueued in one transaction, with `enqueue_in_transaction` | docs.dbos.dev,
  python/reference/client
"""

import signal
import threading

import common
import sqlalchemy
from dbos import DBOS, DBOSClient

_open = []
URL = common.DSN.replace("postgresql://", "postgresql+psycopg://")


def client():
    if not _open:
        _open.append((DBOSClient(system_database_url=common.DSN), sqlalchemy.create_engine(URL)))
    return _open[0]


def launch():
    DBOS(config={"name": "bench", "system_database_url": common.DSN, "log_level": "WARNING", "application_version": "1"})
    for function in (common.nothing, common.wait, common.block):
        DBOS.workflow(name=function.__name__)(function)
    DBOS.launch()


def setup():
    launch()
    DBOS.destroy()


def _options(kind):
    return {"queue_name": "bench", "workflow_name": kind, "app_version": "1"}


def bulk(kind, jobs):
    dbos, engine = client()
    with engine.begin() as connection:
        for job in jobs:
            dbos.enqueue_in_transaction(connection, _options(kind), **job)


def single(kind, job):
    client()[0].enqueue(_options(kind), **job)


def left():
    with client()[1].connect() as connection:
        question = "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"
        return connection.execute(sqlalchemy.text(question)).scalar()


def work():
    launch()
    limit = common.concurrency(drain=100, io=500)
    DBOS.register_queue("bench", worker_concurrency=limit, polling_interval_sec=0.05)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
