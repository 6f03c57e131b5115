"""RQ. One job at a time in each worker.

Settings:
- `SimpleWorker`, which does not fork for every job | python-rq.org/docs/workers, "Performance Notes"
- result_ttl 0: results are not kept | python-rq.org/docs/results
- many jobs are enqueued with `enqueue_many` | python-rq.org/docs, "Bulk Job Enqueueing"
"""

import common
import redis
from rq import Queue
from rq.registry import StartedJobRegistry
from rq.worker import SimpleWorker

NAMES = {"nothing": "common.nothing_blocking", "wait": "common.wait_blocking", "block": "common.block"}
connection = redis.Redis.from_url(common.REDIS or "redis://localhost")
queue = Queue("bench", connection=connection)


def setup():
    pass


def bulk(kind, jobs):
    with connection.pipeline() as pipe:
        queue.enqueue_many([Queue.prepare_data(NAMES[kind], kwargs=job, result_ttl=0) for job in jobs], pipeline=pipe)
        pipe.execute()


def single(kind, job):
    queue.enqueue(NAMES[kind], kwargs=job, result_ttl=0)


def left():
    return queue.count + StartedJobRegistry(queue=queue).get_job_count(cleanup=False)


def work():
    SimpleWorker([queue], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
