"""Huey on Redis.

Settings:
- one thread (the default); 100 threads for jobs that wait, more were slower | huey docs, consumer, "-w" and "-k"
- blocking reads (`RedisHuey`'s default) | huey docs, RedisHuey
- results=False: results are not kept | huey docs, Huey
- many are enqueued one by one over one connection: there is no bulk call | huey docs, guide
"""

import common
from huey import RedisHuey

huey = RedisHuey("bench", url=common.REDIS or "redis://localhost", results=False)
FUNCTIONS = {"nothing": common.nothing_blocking, "wait": common.wait_blocking, "block": common.block}
TASKS = {kind: huey.task(name=kind)(function) for kind, function in FUNCTIONS.items()}


def setup():
    pass


def bulk(kind, jobs):
    for job in jobs:
        TASKS[kind](**job)


def single(kind, job):
    TASKS[kind](**job)


def left():
    return huey.pending_count()


def work():
    threads = str(common.concurrency(drain=1, io=100, cpu=1))
    common.become("huey_consumer", "use_huey.huey", "-w", threads, "-k", "thread", "-q")


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
