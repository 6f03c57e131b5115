"""DBOS, a workflow of one step on a queue with a limit over all processes.

Settings:
- concurrency 10 of the queue, "across all DBOS processes"; each process has an executor_id of its own | docs.dbos.dev,
  python/reference/queues
- polling_interval_sec 0.05 instead of 1 | docs.dbos.dev, python/reference/queues
- many are enqueued in one transaction, with `enqueue_in_transaction` | docs.dbos.dev, python/reference/client
"""

import os
import signal
import threading

import common
import use_dbos
from dbos import DBOS


def launch():
    config = {"name": "bench", "system_database_url": common.DSN, "log_level": "WARNING", "application_version": "1"}
    DBOS(config={**config, "executor_id": os.environ.get("BENCH_WORKER", "0")})
    DBOS.workflow(name="held")(common.held)
    DBOS.launch()


def setup():
    launch()
    DBOS.destroy()


def bulk(kind, jobs):
    use_dbos.bulk(kind, jobs)


def single(kind, job):
    use_dbos.single(kind, job)


def left():
    return use_dbos.left()


def work():
    launch()
    DBOS.register_queue("bench", concurrency=common.LIMIT, polling_interval_sec=0.05)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
