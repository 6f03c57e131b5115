"""Absurd's tasks and steps.

Settings:
- the blocking worker with a pool of 50 threads, which share its connection: its async worker runs a batch to its end
  before it claims the next | absurd-sdk, `Absurd.start_worker`
- poll_interval 0.05 s instead of 0.25 | absurd docs, worker options
- children on a queue of their own, which a second worker of the same process serves: a task must not wait for one of its
  own queue; their results with `await_task_result`, one after the other | absurd-sdk, `TaskContext.await_task_result`
- it has no bulk enqueue: many are spawned with `absurd.spawn_task` in one statement | absurd docs, SQL reference
- after `kill -9`: claim_timeout at its default of 120 s, which each step begins anew | absurd-sdk, `Absurd.start_worker`
"""

import json
import os
import subprocess
import sys
import threading
import time

import common
import flow_common
import psycopg
from absurd_sdk import Absurd

QUEUE, CHILDREN = "bench", "children"
CLAIM_SECONDS = int(os.environ.get("BENCH_CLAIM_SECONDS", "120"))
_open = {}


def connection():
    if not _open:
        _open["sql"] = psycopg.connect(common.DSN, autocommit=True)
        _open["app"] = Absurd(common.DSN, queue_name=QUEUE)
    return _open["sql"]


def setup():
    control = os.path.join(os.path.dirname(sys.executable), "absurdctl")
    for words in (["init"], ["create-queue", QUEUE], ["create-queue", CHILDREN]):
        subprocess.run([control, *words], check=True, env={**os.environ, "ABSURD_DATABASE_URL": common.DSN})


def spawned(sql, queue, name, arguments):
    """Many tasks in one statement; their ids."""
    rows = sql.execute(
        "select task.task_id::text from jsonb_array_elements(%s::jsonb) with ordinality as given (params, place),"
        " absurd.spawn_task(%s, %s, given.params, '{}'::jsonb) as task order by given.place",
        (json.dumps(arguments), queue, name),
    )
    return [row[0] for row in rows]


def bulk(kind, jobs):
    spawned(connection(), QUEUE, kind, flow_common.numbered(jobs))


def single(kind, job):
    bulk(kind, [job])


def send(number):
    connection()
    _open["app"].emit_event(f"go-{number}", time.time())


def left():
    question = " union all ".join(
        f"select count(*) from absurd.t_{queue} where state not in ('completed', 'failed', 'cancelled')"
        for queue in (QUEUE, CHILDREN)
    )
    return sum(row[0] for row in connection().execute(question))


def steps(params, ctx):
    for at in range(flow_common.STEPS):
        ctx.step(f"step-{at}", lambda: common.stamp(params["sent"]))


def short(params, ctx):
    ctx.step("one", lambda: common.stamp(0.0))
    ctx.sleep_for("nap", flow_common.NAP_SECONDS)
    ctx.step("two", lambda: 2)
    ctx.step("three", lambda: common.stamp(params["sent"]))


def fan(params, ctx):
    arguments = [{"of": of} for of in range(flow_common.CHILDREN)]
    ids = ctx.step("spawn", lambda: spawned(connection(), CHILDREN, "child", arguments))
    results = [ctx.await_task_result(task_id, queue_name=CHILDREN).result for task_id in ids]
    common.stamp(params["sent"])
    return sum(results)


def answer(params, ctx):
    ctx.step("begun", lambda: common.stamp(0.0))
    common.stamp(ctx.await_event(f"go-{params['number']}"))


def killed(params, ctx):
    ctx.step("recorded", lambda: flow_common.recorded(params["number"]))
    ctx.step("endless", lambda: flow_common.was_begun(params["number"]) or time.sleep(flow_common.FOREVER_SECONDS))


def child(params, ctx):
    return params["of"]


def work():
    own, of_children = Absurd(common.DSN, queue_name=QUEUE), Absurd(common.DSN, queue_name=CHILDREN)
    for function in (steps, short, fan, answer, killed):
        own.register_task(name=function.__name__)(function)
    of_children.register_task(name="child")(child)
    settings = {"concurrency": 50, "poll_interval": 0.05, "claim_timeout": CLAIM_SECONDS}
    threading.Thread(target=of_children.start_worker, kwargs=settings, daemon=True).start()
    own.start_worker(**settings)


if __name__ == "__main__":
    common.main(setup=setup, bulk=bulk, single=single, left=left, work=work, send=send)
