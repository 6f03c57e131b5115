"""A server that starts or runs while the database is away: it says so to everybody, and all is well when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from faultline.core.model import Submission
from faultline.core.schedules import Policy, Rule
from faultline.store.async_database import AsyncDatabase
from faultline.store.reads import views
from faultline.store.statement import Statement
from faultline.store.verbs import schedules
from faultline.web.auth.connection_share import Share
from faultline.web.server.problems import problem_of
from faultline.web.server.service import Service
from tests.web.conftest import QUICK, Api, away, new_key, refused, running
from tests.web.site import PATHS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.driver import Driver

WHO = Statement("who", "select current_user::text", (), lambda rows: str(rows[0][0]))
PATIENCE = 60
SINCE = re.compile(r"The database has not answered since ([-0-9]+ [0-9:]+ UTC)")


def test_a_server_that_starts_before_its_database_answers_at_once_and_needs_no_restart(
    dsn: str, db: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    _, key = new_key(db, "admin")
    db.connection.close()
    with contextlib.ExitStack() as stack:
        outage = stack.enter_context(contextlib.ExitStack())
        outage.enter_context(away(dsn))
        api = stack.enter_context(Api(stack.enter_context(running(dsn)), key))

        assert api.get("/health").status_code == 200
        assert "DatabaseUnavailable" in api.get("/ready").json()["reasons"][0]
        refused(api.get("/jobs"), 503, "DatabaseUnavailable")
        refused(api.post("/jobs", json={"task": "t"}), 503, "DatabaseUnavailable")
        page = api.http.get("/", headers={"Accept": "text/html"})
        assert (page.status_code, "http-equiv" in page.text) == (503, True)
        assert "database_unavailable" in [record.getMessage() for record in caplog.records]

        outage.close()
        deadline = time.monotonic() + PATIENCE
        while api.get("/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        api.submit()


def test_every_page_says_that_the_database_is_away_and_since_when(dsn: str, db: Driver) -> None:
    _, key = new_key(db, "admin")
    job_id = db.enqueue()
    db.run(schedules.set_schedule("nightly", schedules.spec_text(Rule(every=60.0), Submission("t"), Policy())))
    began = datetime.now(UTC)
    with running(dsn) as address, Api(address, key) as api:

        def page(path: str) -> httpx.Response:
            found = (
                path.replace("{job_id}", str(job_id))
                .replace("{name:path}", "nightly")
                .replace("{queue_name:path}", "default")
            )
            return api.http.get(found, headers={"accept": "text/html"})

        for path in PATHS:
            assert page(path).status_code == 200, path

        with away(dsn):
            for path in (*PATHS, "/nowhere", "/ready", "/api/v1/jobs", "/metrics"):
                deadline = time.monotonic() + PATIENCE
                while (since := SINCE.search((answer := page(path)).text)) is None:
                    assert time.monotonic() < deadline, (path, answer.status_code, answer.text)
                assert (
                    began.replace(microsecond=0)
                    <= datetime.strptime(since[1], "%Y-%m-%d %H:%M:%S %Z").replace(tzinfo=UTC)
                    <= datetime.now(UTC)
                ), path
                assert answer.status_code == {"/sign-in": 200, "/nowhere": 404}.get(path, 503), path

        for path in PATHS:
            deadline = time.monotonic() + PATIENCE
            while (answer := page(path)).status_code != 200 or SINCE.search(answer.text):
                assert time.monotonic() < deadline, (path, answer.text)
                time.sleep(0.1)


@contextlib.contextmanager
def login_without_roles(dsn: str, *but: str) -> Iterator[str]:
    """A DSN of somebody who reads some of it and may take none of our roles but these."""
    name = sql.Identifier(f"faultline_test_{secrets.token_hex(4)}")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login").format(name))
        owner.execute(sql.SQL("grant usage on schema faultline to {}").format(name))
        owner.execute(sql.SQL("grant select on all tables in schema faultline to {}").format(name))
        owner.execute(sql.SQL("grant execute on all functions in schema faultline to {}").format(name))
        for role in but:
            owner.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), name))
    try:
        yield make_conninfo(dsn, user=name.as_string(None).strip('"'))
    finally:
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(sql.SQL("drop owned by {}").format(name))
            owner.execute(sql.SQL("drop role {}").format(name))


async def roles_after_an_outage(dsn: str, login: str) -> list[str]:
    """As whom a service reads and submits that was opened while the database was away."""
    service = Service(login, limits=replace(QUICK, connect_seconds=0.3))
    with away(dsn):
        await service.open()
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(Exception):
                    return [await database.run(WHO) for database in (service.read, service.enqueue)]
                await asyncio.sleep(0.1)
    finally:
        await service.close()


@pytest.mark.parametrize(
    ("granted", "taken"),
    [([], ["own", "own"]), (["faultline_viewer"], ["faultline_viewer", "own"])],
)
def test_each_role_that_was_taken_for_granted_in_an_outage_is_looked_at_later(
    dsn: str, granted: list[str], taken: list[str]
) -> None:
    with login_without_roles(dsn, *granted) as login:
        found = asyncio.run(roles_after_an_outage(dsn, login))

    assert ["own" if role.startswith("faultline_test_") else role for role in found] == taken


def test_a_login_with_all_roles_has_them_after_an_outage(dsn: str) -> None:
    assert asyncio.run(roles_after_an_outage(dsn, dsn)) == ["faultline_viewer", "faultline_producer"]


class Counted(AsyncDatabase):
    asked = 0

    async def run(self, statement: Statement[Any], *words: Any, **more: Any) -> Any:
        self.asked += 1
        return await super().run(statement, *words, **more)


def test_a_flood_of_questions_whether_we_are_ready_is_one_to_the_database(dsn: str) -> None:
    async def asked() -> list[int]:
        service = Service(dsn, limits=QUICK)
        service.read = service.enqueue = service.operate = counted = Counted(dsn)
        found = []
        try:
            for _ in range(2):
                looks = await asyncio.gather(*(service.readiness.latest() for _ in range(200)))
                assert {look.fault for look in looks} == {None}
                found.append(counted.asked)
                await asyncio.sleep(1.1)  # as long as an answer is good
        finally:
            await counted.close()
        return found

    assert asyncio.run(asked()) == [5, 10]  # the schema in each role, a key, and the workers


def test_who_waits_for_a_turn_while_the_database_is_away_is_told_that_and_not_blamed(dsn: str) -> None:
    async def told() -> set[str]:
        service = Service(dsn, limits=replace(QUICK, reads_caller_max=1, connect_seconds=0.5))
        service.read = AsyncDatabase(dsn, connect_seconds=0.5)
        try:
            await service.read.run(WHO)
            with away(dsn):
                assert (await service.readiness.latest()).fault is not None
                share = Share(service, service.readiness)
                reads = await asyncio.gather(*(share.run(views.clock()) for _ in range(5)), return_exceptions=True)
            return {problem_of(read).code for read in reads if isinstance(read, Exception)}
        finally:
            await service.read.close()

    codes = asyncio.run(told())
    assert "DatabaseUnavailable" in codes
    assert "TooManyReads" not in codes


def test_what_pages_load_is_kept_for_ever_under_a_name_of_its_content(dsn: str) -> None:
    with running(dsn) as address, Api(address) as api:
        page = api.http.get("/", headers={"Accept": "text/html"}).text
        loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)

        assert len(loaded) >= 4
        for path in loaded:
            kept = api.http.get(path)
            other = api.http.get(re.sub(r"-[0-9a-f]{12}\.", "-000000000000.", path))
            assert kept.status_code == other.status_code == 200, path
            assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert other.headers["cache-control"] == "no-store"
            assert kept.content == other.content
        assert api.http.get("/static/faultline.css").status_code == 404


def test_a_database_that_takes_no_writes_is_read_with_a_key_and_is_not_ready(dsn: str, db: Driver) -> None:
    _, key = new_key(db, "admin")
    job_id = db.enqueue()
    read_only = make_conninfo(dsn, options="-c default_transaction_read_only=on")

    with running(read_only) as address, Api(address, key) as api:
        ready = api.get("/ready")
        assert (ready.status_code, ready.json()["reasons"][0].partition(":")[0]) == (503, "DatabaseReadOnly")
        assert api.get(f"/jobs/{job_id}").json()["id"] == str(job_id)
        assert {api.get(path).status_code for path in ("/jobs", "/queues", "/workers")} == {200}
        refused(api.post("/jobs", json={"task": "t"}), 503, "DatabaseUnavailable")
