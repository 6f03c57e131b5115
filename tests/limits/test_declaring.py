"""A worker declares what its code has when it starts: each queue and budget by itself, and what it has is on record."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from faultline import Faultline, JobState, Rate
from faultline.core.faults import Faults
from faultline.core.host import Host
from tests.limits.test_workers import PATIENCE, worked
from tests.waiting import auntil
from tests.worker.working import logged

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from tests.driver import Driver


def test_a_declaration_that_is_refused_holds_up_its_own_queue_alone(app: Faultline, queue: Driver, log: io.StringIO) -> None:
    app.queue("calls", concurrency=2)
    app.queue("mail", rate=Rate(100))
    app.queue("reports", concurrency=2)

    @app.task
    async def note(n: int) -> int:
        return n

    queue.execute("alter table faultline.limits add constraint no_mail check (queue <> 'mail')")
    handles = {name: note.options(queue=name).enqueue(1) for name in ("calls", "mail", "reports")}

    async def story() -> int:
        for name in ("calls", "reports"):
            await handles[name].aresult(PATIENCE)
        await auntil(lambda: logged(log, "queue_not_declared"))
        assert queue.state(handles["mail"].id) is JobState.QUEUED
        queue.execute("alter table faultline.limits drop constraint no_mail")
        return await handles["mail"].aresult(PATIENCE)

    assert worked(app, dict.fromkeys(handles, 2), story, workers=1) == 1
    [said, *_] = logged(log, "queue_not_declared")
    assert said["queue"] == "mail"
    assert "no_mail" in said["error"]
    assert queue.value("select array_agg(name order by name) from faultline.queues where limited") == [*sorted(handles)]


def test_a_worker_says_which_budgets_its_code_has(app: Faultline) -> None:
    app.budget("openai", Rate(10))

    async def story() -> tuple[bool, ...]:
        await app.limits.aset_budget("gone", Rate(5))
        await app.async_database.run(app.budget_declarations()["openai"])

        async def orphaned() -> bool:
            return (await app.limits.abudgets())[1].orphaned

        while await orphaned():
            await asyncio.sleep(0.05)
        return tuple(one.orphaned for one in await app.limits.abudgets())

    assert worked(app, {"default": 1}, story, workers=1) == (False, False)


class After(Faults):
    """Does something once a statement is committed for the first time."""

    wanted = True

    def __init__(self, statement: str, then: Callable[[], object]) -> None:
        self._point = f"after_{statement}_committed"
        self._then: Callable[[], object] | None = then

    def reach(self, point: str) -> None:
        if point == self._point and self._then is not None:
            then, self._then = self._then, None
            then()


def test_a_budget_that_is_removed_before_the_worker_has_said_that_it_has_it_is_declared_again(
    dsn: str, queue: Driver
) -> None:
    """Another worker runs, with other code."""
    queue.value("select faultline.declare_budget('openai', %s)", json.dumps({"rate": 10}))
    queue.heartbeat("other")
    queue.value("select faultline.announce('other', '{}', 1, '{}', '{}')")
    removed: list[bool] = []

    def remove() -> None:
        removed.append(queue.value("select faultline.set_budget('openai', null, 'ada', 'in no code')"))

    with Faultline(dsn, host=Host(faults=After("declare_budget", remove))) as app:
        app.budget("openai", Rate(10))

        async def story() -> None:
            await auntil(lambda: removed and queue.value("select count(*) from faultline.budgets") == 1)

        worked(app, {"default": 1}, story, workers=1)

    assert removed == [True]
