"""Celery on Redis.

Settings:
- prefork, one child a worker; 100 threads for jobs that wait | docs.celeryq.dev, userguide/workers and
  userguide/concurrency
- worker_prefetch_multiplier 128: "if you have many short-running tasks" | docs.celeryq.dev, userguide/optimizing
- ignore_result, and no gossip, mingle and heartbeat | docs.celeryq.dev, userguide/tasks and userguide/workers
- many are enqueued one by one over one connection: there is no bulk call | docs.celeryq.dev, userguide/calling
"""

import common
import redis
from celery import Celery

app = Celery("bench", broker=common.REDIS)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=10,
)
FUNCTIONS = {"nothing": common.nothing_blocking, "wait": common.wait_blocking, "block": common.block}
TASKS = {kind: app.task(name=kind)(function) for kind, function in FUNCTIONS.items()}
_store = []


def setup():
    pass


def bulk(kind, jobs):
    with app.producer_or_acquire() as producer:
        for job in jobs:
            TASKS[kind].apply_async(kwargs=job, producer=producer)


def single(kind, job):
    TASKS[kind].apply_async(kwargs=job)


def left():
    if not _store:
        _store.append(redis.Redis.from_url(common.REDIS))
    return _store[0].llen("celery") + _store[0].hlen("unacked")


def work():
    pool = ("-P", "threads", "-c", "100") if common.WORKLOAD == "io" else ("-P", "prefork", "-c", "1")
    flags = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
    common.become("celery", "-A", "use_celery", "worker", *pool, *flags)


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
