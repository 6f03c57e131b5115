"""Limits in tests of programs: drained jobs are claimed as workers claim them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faultline import Job, Limit, Rate
from faultline.testing import drain, frozen_time

if TYPE_CHECKING:
    from faultline import Faultline


def test_a_drain_runs_all_that_the_limits_allow_in_turn(app: Faultline) -> None:
    order: list[str] = []
    app.queue("mail", concurrency=1, each_group=Limit(concurrency=1))

    @app.task(queue="mail", group="{tenant}")
    async def send(tenant: str) -> None:
        order.append(tenant)

    app.declare()
    app.enqueue_many(send.bind(tenant) for tenant in ("a", "a", "a", "b"))

    assert drain(app).succeeded == 4
    assert order.index("b") < 3


def test_what_a_rate_does_not_allow_yet_is_not_due(app: Faultline) -> None:
    app.queue("mail", rate=Rate(1, per=60, burst=2))

    @app.task(queue="mail")
    async def send(n: int) -> None: ...

    @app.task
    async def other(n: int) -> None: ...

    app.declare()
    with frozen_time(app) as time:
        app.enqueue_many([*(send.bind(n) for n in range(5)), other.bind(1)])

        assert drain(app).succeeded == 3
        assert drain(app).succeeded == 0
        time.advance(60)
        assert drain(app).succeeded == 1
        assert drain(app, advancing=time).succeeded == 2


def test_delayed_jobs_of_groups_run_when_they_are_due(app: Faultline) -> None:
    app.queue("mail", each_group=Limit(concurrency=1))

    @app.task(queue="mail", group="{tenant}", delay=3600)
    async def send(tenant: str) -> None: ...

    app.declare()
    with frozen_time(app) as time:
        app.enqueue_many(send.bind("a") for _ in range(2))

        assert drain(app).succeeded == 0
        time.advance(3600)
        assert drain(app).succeeded == 2


def test_delayed_jobs_without_a_group_in_a_queue_with_limits_are_advanced_to(app: Faultline) -> None:
    app.queue("mail", concurrency=1)

    @app.task(queue="mail", delay=3600)
    async def send(n: int) -> None: ...

    app.declare()
    with frozen_time(app) as time:
        app.enqueue_many(send.bind(n) for n in range(2))

        assert drain(app).succeeded == 0
        assert drain(app, advancing=time).succeeded == 2


@pytest.mark.parametrize("ordered", [True, False, None])
def test_time_is_not_advanced_to_the_end_of_a_wait_that_has_none(app: Faultline, ordered: bool | None) -> None:  # noqa: FBT001
    if ordered is not None:
        app.queue("ledger", each_group=Limit(ordered=ordered))

    @app.task(queue="elsewhere")
    async def credit() -> int:
        return 1

    @app.task(queue="ledger", group="a")
    async def transfer(job: Job) -> int:
        return await job.call(credit.options(group="b"))

    app.declare()
    with frozen_time(app) as time:
        handle = transfer.enqueue()

        assert drain(app, queue="ledger", advancing=time, timeout=20).succeeded == 0
        assert drain(app, advancing=time).succeeded == 2
        assert handle.result(5) == 1
        ended = handle.job()
        assert ended.finished_at is not None
        assert (ended.finished_at - ended.created_at).total_seconds() < 60
