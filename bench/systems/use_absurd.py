"""Absurd (absurd-sdk), a task without steps.

Settings:
- the blocking worker with a pool of 50 threads, 200 for jobs that wait, 25 for jobs that compute: its async worker
  runs a batch to its end before it claims the next | absurd-sdk, `Absurd.start_worker`
- poll_interval 0.05 s instead of 0.25 | absurd docs, worker options
- it has no bulk enqueue: many are spawned with `absurd.spawn_task` in one statement | absurd docs, SQL reference
"""

import json
import os
import subprocess
import sys

import common
import psycopg
from absurd_sdk import Absurd

QUEUE = "bench"
_open = {}


def connection():
    if not _open:
        _open["sql"] = psycopg.connect(common.DSN, autocommit=True)
        _open["app"] = [Absurd(common.DSN, queue_name=QUEUE) for _ in range(8)]
    return _open["sql"]


def setup():
    control = os.path.join(os.path.dirname(sys.executable), "absurdctl")
    for words in (["init"], ["create-queue", QUEUE]):
        subprocess.run([control, *words], check=True, env={**os.environ, "ABSURD_DATABASE_URL": common.DSN})


def bulk(kind, jobs):
    connection().execute(
        "select count(*) from jsonb_array_elements(%s::jsonb) as job, absurd.spawn_task(%s, %s, job, '{}'::jsonb)",
        (json.dumps(jobs), QUEUE, kind),
    )


def single(kind, job):
    connection()
    app = _open["app"].pop()
    try:
        app.spawn(kind, job, queue=QUEUE)
    finally:
        _open["app"].append(app)


def left():
    question = f"select count(*) from absurd.t_{QUEUE} where state not in ('completed', 'failed', 'cancelled')"
    return connection().execute(question).fetchone()[0]


def work():
    app = Absurd(common.DSN, queue_name=QUEUE)
    for function in (common.nothing_blocking, common.wait_blocking, common.block):

        def handler(params, ctx, function=function):
            function(**params)

        app.register_task(name=function.__name__.removesuffix("_blocking"))(handler)
    app.start_worker(concurrency=common.concurrency(drain=50, io=200), poll_interval=0.05)


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work)
