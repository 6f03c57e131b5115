"""What a worker says at its start about declarations: what it has replaced, and what is not in force."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from faultline import Faultline, Limit, Rate
from tests.cli.commands import faultline
from tests.waiting import auntil

if TYPE_CHECKING:
    import io

    from tests.driver import Driver


def started(app: Faultline) -> None:
    async def main() -> None:
        async with app, app.worker({"mail": 1}):
            pass

    asyncio.run(main())


def said(log: io.StringIO, *names: str) -> list[dict[str, Any]]:
    """What was logged under these names since the last call."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    log.seek(0)
    log.truncate(0)
    return [
        {name: value for name, value in line.items() if name not in ("at", "level", "worker")}
        for line in lines
        if line["event"] in names
    ]


def test_a_worker_says_what_it_has_replaced_and_what_people_have_set_over_it(dsn: str, log: io.StringIO) -> None:
    first, second = Faultline(dsn), Faultline(dsn)
    first.queue("mail", concurrency=2, each_group=Limit(concurrency=1))
    first.budget("openai", Rate(600, per=60, burst=20))
    second.queue("mail", concurrency=7)
    names = ("limits_declared", "limits_overridden")

    started(first)
    assert [(one.get("queue"), one.get("budget"), one["was"], one["limit"]) for one in said(log, *names)] == [
        (None, "openai", "", "600/min (burst 20)"),
        ("mail", None, "", "2 at once"),
        ("mail", None, "", "1 at once"),
    ]
    started(first)
    assert said(log, *names) == []
    with first:
        first.limits.set("mail", concurrency=1, by="ada", reason="slow provider")
    started(second)

    assert said(log, *names) == [
        {"event": "limits_declared", "queue": "mail", "group": "", "was": "2 at once", "limit": "7 at once"},
        {
            "event": "limits_overridden",
            "queue": "mail",
            "group": "",
            "limit": "7 at once",
            "in_force": "1 at once",
            "by": "ada",
            "reason": "slow provider",
        },
        {"event": "limits_declared", "queue": "mail", "group": "*", "was": "1 at once", "limit": ""},
    ]


def test_a_worker_warns_of_tasks_without_a_group_where_groups_have_limits(dsn: str, log: io.StringIO) -> None:
    app = Faultline(dsn)
    mail = app.queue("mail", each_group=Limit(concurrency=1))
    fair = app.queue("fair", each_group=Limit())

    @app.task(queue=mail)
    async def send(tenant: int) -> None: ...

    @app.task(queue=mail, group="tenant-{tenant}")
    async def digest(tenant: int) -> None: ...

    @app.task(queue=fair)
    async def report() -> None: ...

    started(app)

    assert said(log, "groups_missing") == [{"event": "groups_missing", "queue": "mail", "tasks": "send"}]


def test_a_worker_says_which_of_its_schedules_is_not_in_force(dsn: str, log: io.StringIO, queue: Driver) -> None:
    first, second = Faultline(dsn), Faultline(dsn)
    for app, every in ((first, 60), (second, 30)):

        @app.schedule(every=every, name="report")
        @app.task(name="report")
        async def report() -> None: ...

    async def main() -> None:
        async with first, second, first.worker({"mail": 1}):
            await auntil(lambda: queue.value("select count(*) from faultline.workers where schedules <> '{}'") == 1)
            async with second.worker({"mail": 1}):
                pass

    asyncio.run(main())
    assert [one["outcome"] for one in said(log, "schedule_declared")] == ["made", "waiting"]


def test_a_rate_that_a_program_sets_is_whole(dsn: str) -> None:
    with Faultline(dsn) as app:
        app.budget("openai", Rate(600, per=60, burst=20))
        app.declare()

        app.limits.set_budget("openai", Rate(100))

        [found] = app.limits.budgets()
    assert found.effective == {"rate": 100, "per": 1, "burst": 100}


def test_a_limit_that_no_living_worker_has_in_its_code_is_shown_as_such(dsn: str, queue: Driver) -> None:
    with Faultline(dsn) as app:
        app.queue("mail", concurrency=2)
        app.declare()
        queue.heartbeat("w")
        queue.execute("update faultline.workers set heartbeat_at = now() + '1 hour'")
        assert not app.limits.read("mail")[0].orphaned, "a worker that does not say may have it"
        queue.execute("select faultline.announce('w', '{}', 1, '{}', '{}', '{mail}')")
        assert not app.limits.read("mail")[0].orphaned
        queue.execute("select faultline.announce('w', '{}', 1, '{}', '{}', '{other}')")
        assert app.limits.read("mail")[0].orphaned

    told = json.loads(faultline("doctor", "--json", "--dsn", dsn).stdout)
    assert any("limits of mail are in force that no living worker has" in one["found"] for one in told["findings"])


def test_a_worker_says_which_queues_its_code_declares(dsn: str, queue: Driver) -> None:
    app = Faultline(dsn)
    app.queue("mail", concurrency=2)

    async def main() -> None:
        async with app, app.worker({"other": 1}):
            await auntil(lambda: queue.execute("select limits from faultline.workers") == [(["mail"],)])

    asyncio.run(main())
