"""A check of the invariants that cannot be made: it is told with its reason, and the others beside it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import make_conninfo

from faultline.core.errors import DatabaseUnavailable
from faultline.core.host import Host
from faultline.store.async_database import AsyncDatabase
from faultline.store.reads import invariants
from faultline.web.server.service import Service
from tests.web.conftest import Api, away
from tests.web.site import browsed

if TYPE_CHECKING:
    from faultline.store.statement import Statement
    from faultline.web.api.shapes import Verdict
    from tests.driver import Driver

PATIENCE = 60


def test_what_cannot_be_checked_is_told_beside_what_holds_and_what_is_broken(
    api: Api, db: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    db.connection.execute("alter table faultline.open_jobs disable trigger user")
    db.connection.execute("revoke select on faultline.steps from faultline_viewer")

    verdict = api.get("/invariants").json()

    judged = {one["name"]: one for one in verdict["invariants"]}
    assert verdict["holds"] is False
    assert judged["the_guards_are_in_place"]["holds"] is False
    assert judged["a_running_job_has_a_lease"]["holds"] is True
    assert judged["a_step_belongs_to_a_job"]["holds"] is None
    assert judged["a_step_belongs_to_a_job"]["unchecked"].startswith("permission denied for table steps; connect")
    assert "invariants_unchecked" in [record.getMessage() for record in caplog.records]


def test_the_overview_names_what_could_not_be_checked_and_why(dsn: str, db: Driver) -> None:
    db.connection.execute("revoke select on faultline.steps from faultline_viewer")

    with browsed(dsn) as site:
        deadline = time.monotonic() + PATIENCE
        while "checking…" in (text := site.page("/").text):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    assert f"2 of {len(invariants.names())} unchecked" in text
    assert "Not checked: a step belongs to a job (permission denied for table steps; connect as" in text


def test_a_check_that_takes_too_long_is_unchecked_and_a_database_that_is_away_is_a_refusal(dsn: str, db: Driver) -> None:
    async def judged() -> Verdict:
        service = Service(dsn)
        service.audit = AsyncDatabase(make_conninfo(dsn, options="-c statement_timeout=1000"))
        try:
            return await service.verdicts.latest()
        finally:
            await service.audit.close()

    with db.connection.transaction():
        db.connection.execute("lock table faultline.steps in access exclusive mode")
        verdict = asyncio.run(judged())

    unchecked = {one.name: one.unchecked for one in verdict.invariants if one.holds is None}
    assert verdict.holds is None
    assert "statement timeout" in str(unchecked["a_step_belongs_to_a_job"])
    assert len(unchecked) < len(verdict.invariants)
    with away(dsn), pytest.raises(DatabaseUnavailable):
        asyncio.run(judged())


def test_all_who_wait_share_one_check_however_long_it_takes() -> None:
    class Slow(AsyncDatabase):
        now = 0.0
        asked = 0

        async def run(self, statement: Statement[Any]) -> Any:  # noqa: ARG002 - nothing is broken
            self.asked += 1
            self.now += 10
            await asyncio.sleep(0)

    async def asked() -> list[int]:
        slow = Slow("")
        service = Service("", host=Host(monotonic=lambda: slow.now))
        service.audit = slow
        found = []
        for _ in range(2):
            await asyncio.gather(*(service.verdicts.latest() for _ in range(4)))
            found.append(slow.asked)
            await service.verdicts.latest()
            slow.now += 31
        return [*found, slow.asked]

    once = len(invariants.names())

    assert asyncio.run(asked()) == [once, 2 * once, 2 * once]
