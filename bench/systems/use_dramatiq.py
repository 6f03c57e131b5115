"""Dramatiq on Redis.

Settings:
- one process with 8 threads (the default), 100 for jobs that wait | dramatiq.io, reference,
  command line
- many are enqueued one by one over one connection: there is no bulk call | dramatiq.io, cookbook
"""

import common
import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=common.REDIS)
dramatiq.set_broker(broker)
FUNCTIONS = {"nothing": common.nothing_blocking, "wait": common.wait_blocking, "block": common.block}
TASKS = {kind: dramatiq.actor(actor_name=kind, queue_name="bench")(function) for kind, function in FUNCTIONS.items()}


def setup():
    pass


def bulk(kind, jobs):
    for job in jobs:
        TASKS[kind].send(**job)


def single(kind, job):
    TASKS[kind].send(**job)


def left():
    return broker.client.hlen("dramatiq:bench.msgs")


def work():
    threads = str(common.concurrency(drain=8, io=100, cpu=8))
    common.become("dramatiq", "use_dramatiq", "--processes", "1", "--threads", threads)


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
