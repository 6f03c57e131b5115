"""A flow that crashes at any of its fault points goes on as if nothing had been: every effect once, every call once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline.store.reads import invariants
from faultline.testing import crash_everywhere, drain

if TYPE_CHECKING:
    from faultline import Faultline, Job
    from faultline.attempt.async_transaction import Transaction
    from tests.driver import Driver

pytestmark = pytest.mark.long


async def note(tx: Transaction, what: str) -> str:
    await tx.execute("insert into effects values (%s)", (what,))
    return what


def test_a_flow_that_crashes_anywhere_does_everything_once(app: Faultline, queue: Driver) -> None:
    queue.connection.execute("create table effects (what text)")

    @app.task
    async def paid(job: Job) -> int:
        return 7

    @app.task(max_attempts=5, backoff=lambda _: 0)
    async def part(job: Job, n: int) -> int:
        await job.atomic("note", note, f"part {n}")
        return n

    @app.step
    async def ask(job_id: str) -> bool:
        return await app.asignal(job_id, "approval", 5, key="ask")

    @app.task(max_attempts=5, backoff=lambda _: 0)
    async def order(job: Job, payment: str) -> int:
        job.stream("told").write("begun")
        await job.atomic("begin", note, "begin")
        watched: int = await job.watch(payment)
        await job.do(ask, str(job.id))
        approved = await job.receive("approval", int)
        parts = await job.map(part, [1, 2])
        await job.sleep(60)
        await job.atomic("end", note, "end")
        return watched + approved + sum(parts)

    payment = paid.enqueue()
    drain(app)

    def effects() -> dict[str, int]:
        found = queue.connection.execute("select what, count(*) from effects group by what").fetchall()
        return {what: int(count) for what, count in found}

    report = crash_everywhere(app, order.bind(str(payment.id)), effects=effects)

    report.raise_if_broken()
    assert report.expected == {"begin": 1, "end": 1, "part 1": 1, "part 2": 1}
    crashed = {crash.point.split(": ")[-1].split("@")[0] for crash in report.crashes}
    for verb in ("record", "watch", "collect_outcomes", "signal", "receive", "spawn", "suspend"):
        assert {f"before_{verb}_sent", f"after_{verb}_committed"} <= crashed, verb
    results = queue.connection.execute("select distinct result from faultline.ledger where task like '%%order'").fetchall()
    assert results == [(15,)]
    twice = queue.connection.execute(
        "select count(*) from faultline.edges group by call_id, job_id having count(*) > 1"
    ).fetchall()
    assert twice == []
    assert queue.value("select count(*) from faultline.signals where received_by is null") == 0
    assert [one.invariant for one in invariants.violations(queue.run, without=("times_come_from_the_server_clock",))] == []
