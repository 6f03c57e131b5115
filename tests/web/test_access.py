"""Who may do what: keys, scopes, queues, browsers. Each refusal is its own answer, and none tells what it should not."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from faultline.core.errors import ConfigError
from faultline.store.connection import roles
from faultline.store.database import run_on
from faultline.store.statement import Statement
from faultline.store.verbs import access
from faultline.web.auth.sessions import AGE_SECONDS, IDLE_SECONDS, Sessions
from faultline.web.pages.page_frame import environment
from faultline.web.server.server import server
from faultline.web.server.service import Service
from tests.web.conftest import QUICK, Api, refused, running

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from tests.driver import Driver

NOWHERE = "00000000-0000-0000-0000-000000000001"


def test_without_a_good_key_nobody_is_let_in(api: Api, stranger: Api) -> None:
    shown = (None, "Bearer", "Bearer x", "Basic abc", f"Bearer fl_{'0' * 12}_{'A' * 43}", "Bearer \u00e9")
    paths = ("/jobs", f"/jobs/{NOWHERE}", "/queues", "/workers", "/invariants", "/failures", "/events")

    for text, path in product(shown, paths):
        answer = stranger.get(path, headers={} if text is None else {"Authorization": text.encode("latin-1")})
        refused(answer, 401, "Unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_key_is_good_until_it_is_revoked_or_its_time_is_over(caller: Callable[..., Api], db: Driver) -> None:
    key, expired = caller("read"), caller("read", valid_seconds=0)
    assert key.get("/jobs").status_code == 200

    assert key.key_id is not None
    run_on(db.connection, access.revoke(key.key_id))

    refused(key.get("/jobs"), 401, "Unauthorized")
    refused(expired.get("/jobs"), 401, "Unauthorized")


def test_a_key_can_do_what_its_scopes_say_and_nothing_else(caller: Callable[..., Api], api: Api) -> None:
    job_id = api.submit()
    doings: dict[str, Callable[[Api], httpx.Response]] = {
        "read": lambda api: api.get("/jobs"),
        "enqueue": lambda api: api.post("/jobs", json={"task": "t"}),
        "operate": lambda api: api.post(f"/jobs/{job_id}/cancel"),
    }

    for scope in doings:
        key = caller(scope)
        for doing, call in doings.items():
            if doing == scope:
                assert call(key).is_success
            else:
                refused(call(key), 403, "Forbidden")


def test_a_job_of_another_queue_is_as_good_as_none(caller: Callable[..., Api], api: Api, db: Driver) -> None:
    bound = caller("admin", queues=["a"])
    theirs = api.submit(queue="b")
    api.submit(queue="b")
    db.fail(db.claim(queue="b")[1], then="fail")

    for call in (bound.get(f"/jobs/{theirs}"), bound.post(f"/jobs/{theirs}/cancel"), bound.post(f"/jobs/{theirs}/retry")):
        told = refused(call, 404, "JobNotFound")
        assert told["detail"].replace(theirs, "") == _none(bound, call).replace(NOWHERE, "")
    assert bound.post("/jobs/retry", json={}).json()["jobs"] == 0
    for preview in (True, False):
        assert bound.post("/jobs/cancel", json={"task": "t", "preview": preview}).json()["jobs"] == 0
    assert bound.post("/jobs/retry", json={"queue": "b", "preview": True}).json()["jobs"] == 0
    assert bound.get("/failures").json()["groups"] == []
    refused(bound.post("/jobs", json={"task": "t", "queue": "b"}), 403, "QueueForbidden")
    refused(bound.post("/jobs/batch", json={"jobs": [{"task": "t", "queue": "a"}, {"task": "t"}]}), 403, "QueueForbidden")
    refused(bound.post("/queues/b/pause"), 404, "QueueNotFound")
    refused(bound.post("/queues/b/resume"), 404, "QueueNotFound")
    api.submit(queue="a")
    db.sample()
    assert [queue["name"] for queue in bound.get("/queues").json()["queues"]] == ["a"]
    refused(bound.get("/invariants"), 403, "Forbidden")


def _none(api: Api, like: httpx.Response) -> str:
    """What is said of a job that does not exist at all."""
    path = like.request.url.path.split("/")
    path[4] = NOWHERE
    answer = api.http.request(like.request.method, "/".join(path))
    return str(answer.json()["detail"])


def test_without_keys_only_this_machine_is_answered_and_under_its_own_name(stranger: Api) -> None:
    assert stranger.post("/jobs", json={"task": "t"}).status_code == 201
    for headers in ({"Host": "evil.example"}, {"Host": "evil.example:80"}, {"X-Forwarded-For": "1.2.3.4"}, {"Host": ""}):
        refused(stranger.get("/jobs", headers=headers), 403, "NotLoopback")
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        refused(stranger.post("/jobs", json={"task": "t"}, headers=headers), 403, "CrossSite")


def test_once_there_is_a_key_this_machine_must_show_one_too(stranger: Api, db: Driver) -> None:
    assert stranger.get("/jobs").status_code == 200

    run_on(db.connection, access.add(UUID(int=1), bytes(32), name="n", scopes=["read"]))

    refused(stranger.get("/jobs"), 401, "Unauthorized")


def test_without_keys_the_server_listens_to_nobody_else(dsn: str, db: Driver) -> None:
    with pytest.raises(ConfigError, match="there are no API keys"):
        server(dsn, host="0.0.0.0")  # noqa: S104 - that is the point

    run_on(db.connection, access.add(UUID(int=1), bytes(32), name="n", scopes=["read"]))

    assert server(dsn, host="0.0.0.0").config.app.state.service.loopback_only is False  # type: ignore[union-attr]  # noqa: S104


def test_the_server_does_each_thing_in_the_role_that_may_do_no_more(dsn: str) -> None:
    async def taken() -> list[tuple[str, str]]:
        service = Service(dsn, limits=QUICK)
        await service.open()
        who = Statement(
            "who", "select current_user, current_setting('statement_timeout')", (), lambda rows: (rows[0][0], rows[0][1])
        )
        try:
            return [await database.run(who) for database in (service.read, service.enqueue, service.operate)]
        finally:
            await service.close()

    found = asyncio.run(taken())

    assert found == [("faultline_viewer", "5s"), ("faultline_producer", "5s"), ("faultline_operator", "5s")]


def test_where_a_role_cannot_be_taken_the_server_goes_on_and_says_so(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="faultline.events"):
        chosen = asyncio.run(roles.dsn_as(dsn, "no_such_role", statement_seconds=5))

    assert "no_such_role" not in chosen
    assert "statement_timeout=5000" in chosen
    assert [record.getMessage() for record in caplog.records] == ["role_not_taken"]


def test_a_session_ends_when_it_is_idle_or_old() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    idle, used = sessions.open(b"1"), sessions.open(b"2")

    now[0] = IDLE_SECONDS - 1
    assert sessions.find(used.id) is used
    now[0] = IDLE_SECONDS + 1
    assert sessions.find(idle.id) is None
    assert sessions.find(used.id) is used
    while now[0] < AGE_SECONDS:
        now[0] += IDLE_SECONDS / 2
        sessions.find(used.id)

    assert sessions.find(used.id) is None
    assert sessions.find(None) is None


def test_answers_leave_a_browser_no_freedom(api: Api) -> None:
    for answer in (api.get("/jobs"), api.get("/health"), api.get("//nowhere"), api.get("/jobs?x=1")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


def test_who_asks_too_often_is_told_when_to_ask_again(dsn: str, db: Driver) -> None:
    with running(dsn, replace(QUICK, requests_per_second=0.5, requests_burst=3)) as address, Api(address) as stranger:
        answers = [stranger.get("/jobs") for _ in range(4)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    refused(answers[3], 429, "RateLimited")
    assert 1 <= int(answers[3].headers["retry-after"]) <= 2


@pytest.mark.long
def test_who_tries_many_keys_is_asked_to_wait_and_nobody_else_is(api: Api, stranger: Api) -> None:
    assert api.get("/jobs").status_code == 200

    wrong = [stranger.get("/jobs", headers={"Authorization": f"Bearer fl_{n:012d}_{'A' * 43}"}) for n in range(80)]

    assert {answer.status_code for answer in wrong} == {401, 429}
    assert api.get("/jobs").status_code == 200


def test_a_secret_is_never_told_back(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    secret = f"fl_{'0' * 12}_{'S' * 43}"

    answers = [
        api.get("/jobs", headers={"Authorization": f"Bearer {secret}"}),
        api.get("/jobs", params={"key": secret, "x": secret}),
        api.post("/jobs", json={"task": "t", "password": secret, "args": 5}),
    ]

    assert all(secret not in answer.text for answer in answers)
    assert secret not in "".join(capfd.readouterr())


def test_before_anybody_is_answered_connections_have_run_what_is_mostly_asked_for(dsn: str, db: Driver) -> None:
    """Seen by who serves the first requests: connections that were there before."""
    # The board's own sessions, which may come later, are not in transactions.
    mine = "select pid from pg_stat_activity where datname = current_database() and query = 'commit'"

    def connected() -> set[int]:
        return {pid for (pid,) in db.connection.execute(mine).fetchall()}

    assert environment.cache is not None
    environment.cache.clear()

    with running(dsn, replace(QUICK, connections_ready=3)) as address, Api(address) as api:
        before = connected()
        written = db.value("select count(*) from faultline.jobs")
        api.submit()
        api.post("/jobs", json={"task": "t"}, headers={"Idempotency-Key": "k"})
        api.get("/jobs")

        assert len(before) >= 3 * 2  # one of each role may have looked since whether the database is there
        assert not connected() - before
        assert written == 0
        assert len(environment.cache) == len(environment.list_templates())


def test_a_server_that_waits_for_its_first_key_lets_nobody_in_until_there_is_one(dsn: str, db: Driver) -> None:
    """It listens to everybody, so being on this machine is no key."""
    waiting = server(dsn, host="0.0.0.0", port=0, limits=QUICK, keys_later=True)  # noqa: S104 - that is the point

    with running(dsn, ready=waiting) as address, Api(address) as stranger:
        assert [stranger.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
        for path in ("/jobs", "/queues", "/workers", "/failures", "/events", "/invariants"):
            refused(stranger.get(path), 401, "Unauthorized")
        refused(stranger.http.get("/metrics"), 401, "Unauthorized")
        refused(stranger.post("/jobs", json={"task": "t"}), 401, "Unauthorized")
        page = stranger.http.get("/jobs", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, "/sign-in?next=%2Fjobs")
        assert db.claim() == []

        key_id, text = access.new_key(random.SystemRandom())
        run_on(db.connection, access.add(key_id, access.digest_of(text) or b"", name="first", scopes=["enqueue"]))
        with Api(address, text) as first:
            first.submit()
        refused(stranger.get("/jobs"), 401, "Unauthorized")
