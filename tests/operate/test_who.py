"""Who did it, and why, is written down in the same transaction: by page, API, command line, Python and plain SQL alike."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import random
import socket
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from faultline import Faultline, JobNotFound, JobRejected
from faultline.core.model import JobState
from faultline.store import verbs
from faultline.store.verbs import access
from tests.cli.commands import faultline
from tests.cli.terminal import Terminal
from tests.web.conftest import Api, running
from tests.web.site import browsed
from tests.worker.working import logged

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from tests.driver import Driver

AT_HAND = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()} (command line)"


@pytest.fixture
def login(queue: Driver) -> str:
    return str(queue.value("select session_user"))


def told(queue: Driver, event: str) -> list[dict[str, Any]]:
    """What the journal tells of such events, the oldest first."""
    rows = queue.connection.execute("select detail from faultline.journal where event = %s order by id", (event,)).fetchall()
    return [row[0] for row in rows]


def failed(queue: Driver, name: str = "default") -> UUID:
    job_id = queue.enqueue(queue=name)
    queue.fail(queue.claim_one(queue=name), then="fail")
    return job_id


def signed(by: str, login: str, reason: str | None) -> dict[str, str | None]:
    return {"by": by, "login": login, "reason": reason}


def part(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: detail.get(name) for name in ("by", "login", "reason")}


# Python


def test_python_says_who_and_why(app: Faultline, queue: Driver, login: str) -> None:
    first, second = queue.enqueue(), queue.enqueue()

    app.cancel(first, reason="withdrawn", by="billing")
    app.retry(first, reason="paid after all", by="billing")
    app.cancel(second, "only why")
    app.pause("mail", reason="the provider is down", by="billing")
    assert app.resume("mail", reason="it is up", by="billing")
    assert not app.resume("mail")

    assert [part(detail) for detail in told(queue, "cancelled")] == [
        signed("billing", login, "withdrawn"),
        signed(login, login, "only why"),
    ]
    assert [part(detail) for detail in told(queue, "retried")] == [signed("billing", login, "paid after all")]
    assert [part(detail) for detail in told(queue, "paused")] == [signed("billing", login, "the provider is down")]
    assert part(told(queue, "resumed")[0]) == signed("billing", login, "it is up")


def test_async_python_says_who_and_why(app: Faultline, queue: Driver, login: str) -> None:
    job_id = queue.enqueue()

    async def operate() -> None:
        await app.acancel(job_id, reason="withdrawn", by="billing")
        await app.aretry(job_id, reason="paid after all", by="billing")
        await app.apause("mail", reason="the provider is down", by="billing")
        assert await app.aresume("mail", reason="it is up", by="billing")
        await app.aclose()

    asyncio.run(operate())

    assert part(told(queue, "cancelled")[0]) == signed("billing", login, "withdrawn")
    assert part(told(queue, "retried")[0]) == signed("billing", login, "paid after all")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"by": "x" * 201}, "by has 201 characters; at most 200 are allowed"),
        ({"by": "a\x1bb"}, "by` contains control characters"),
        ({"by": ""}, "by must be text of 1 to 200 characters"),
        ({"reason": "x" * 1001}, "reason has 1001 characters; at most 1000 are allowed"),
        ({"reason": "a\x07b"}, "reason` contains control characters"),
    ],
)
def test_python_is_told_what_is_wrong_before_anything_is_sent(queue: Driver, words: dict[str, str], message: str) -> None:
    nowhere = Faultline("postgresql://127.0.0.1:1/none")
    for call in (nowhere.cancel, nowhere.retry):
        with pytest.raises(JobRejected, match=message):
            call("00000000-0000-0000-0000-000000000001", **words)


# The command line


def test_the_command_line_names_the_user_of_the_machine(queue: Driver, dsn: str, login: str) -> None:
    job_id, other = queue.enqueue(), failed(queue, "b")

    assert faultline("cancel", str(job_id), "--reason", "a\u00e9", "--dsn", dsn).returncode == 0
    assert faultline("retry", str(job_id), "--reason", "again", "--dsn", dsn).returncode == 0
    assert faultline("retry", "--failed", "--yes", "--reason", "all", "--dsn", dsn).returncode == 0
    assert faultline("queues", "pause", "mail", "--reason", "down", "--dsn", dsn).returncode == 0
    shown = faultline("queues", "--dsn", dsn).stdout
    assert faultline("queues", "resume", "mail", "--reason", "up", "--dsn", dsn).returncode == 0
    made = json.loads(
        faultline("api-keys", "create", "ci", "--scope", "read", "--reason", "CI", "--json", "--dsn", dsn).stdout
    )
    assert faultline("api-keys", "revoke", made["id"], "--reason", "leaked", "--dsn", dsn).returncode == 0

    assert queue.state(other) is JobState.QUEUED
    for event, reasons in {
        "cancelled": ["aé"], "retried": ["again", "all"], "paused": ["down"], "resumed": ["up"],
        "api_key_added": ["CI"], "api_key_revoked": ["leaked"],
    }.items():  # fmt: skip
        assert [part(detail) for detail in told(queue, event)] == [signed(AT_HAND, login, why) for why in reasons], event
    assert "down" in shown
    assert AT_HAND.partition(" ")[0] in shown


def test_the_command_line_shows_who_did_what_to_a_job(queue: Driver, dsn: str, login: str) -> None:
    job_id = queue.enqueue()
    queue.run(verbs.cancel(job_id, "the order was withdrawn", by="billing"))
    queue.run(verbs.retry(job_id, by="ops", reason="paid\nafter all"))

    shown = faultline("job", str(job_id), "--dsn", dsn).stdout

    for text in ("cancelled by billing", "the order was withdrawn", "retried by ops", "paid", f"login {login}"):
        assert text in shown, shown


def test_at_a_terminal_a_cancel_asks_why_and_for_a_yes(queue: Driver, dsn: str) -> None:
    ids = [str(queue.enqueue()) for _ in range(2)]

    refused = Terminal("cancel", *ids, "--dsn", dsn, term="dumb")
    refused.answer("Why", "by mistake")
    refused.answer("Cancel these 2 jobs? [y/N]", "n")
    assert refused.ended() == 1
    assert told(queue, "cancelled") == []

    agreed = Terminal("cancel", ids[0], "--reason", "given", "--dsn", dsn, term="dumb")
    agreed.answer("Cancel this job? [y/N]", "y")
    assert agreed.ended() == 0, agreed.seen
    asked = Terminal("cancel", ids[1], "--dsn", dsn, term="dumb")
    asked.answer("Why", "asked for")
    asked.answer("Cancel this job? [y/N]", "y")
    assert asked.ended() == 0, asked.seen
    assert [detail["reason"] for detail in told(queue, "cancelled")] == ["given", "asked for"]


def test_a_command_that_nobody_sits_at_asks_nothing(queue: Driver, dsn: str) -> None:
    first, second = queue.enqueue(), queue.enqueue()

    assert faultline("cancel", str(first), "--dsn", dsn).returncode == 0
    agreed = Terminal("cancel", str(second), "--yes", "--dsn", dsn, term="dumb")

    assert agreed.ended() == 0, agreed.seen
    assert [queue.state(job_id) for job_id in (first, second)] == [JobState.CANCELLED] * 2


# The API


@pytest.fixture
def api(dsn: str, queue: Driver) -> Iterator[Callable[..., tuple[Api, str]]]:
    """A client with a key, and how the journal calls it."""
    with running(dsn) as address:

        def make(name: str, **fields: Any) -> tuple[Api, str]:
            key_id, text = access.new_key(random.SystemRandom())
            digest = access.digest_of(text) or b""
            queue.run(access.add(key_id, digest, name=name, scopes=["admin"], **fields))
            return Api(address, text, key_id), f"{key_id.hex[:12]}"

        yield make


def test_the_api_names_the_key(api: Callable[..., tuple[Api, str]], queue: Driver, login: str) -> None:
    client, key = api("ops")
    queue.execute("update faultline.api_keys set name = e'ops\\x1b[31m'")  # named before there was a rule
    job_id, _ = queue.enqueue(), failed(queue, "b")

    with client:
        client.post(f"/jobs/{job_id}/cancel", json={"reason": "one"})
        client.post(f"/jobs/{job_id}/retry", json={"reason": "two"})
        client.post("/jobs/retry", json={"reason": "three"})
        client.post("/queues/mail/pause", json={"reason": "four"})
        (line,) = [line for line in client.get("/queues").json()["queues"] if line["name"] == "mail"]
        client.post("/queues/mail/resume", json={"reason": "five"})
        journal = client.get(f"/jobs/{job_id}").json()["journal"]

    by = f"ops?[31m (API key {key})"
    for event, reasons in {
        "cancelled": ["one"],
        "retried": ["two", "three"],
        "paused": ["four"],
        "resumed": ["five"],
    }.items():
        assert [part(detail) for detail in told(queue, event)] == [signed(by, login, why) for why in reasons], event
    assert [part(entry["detail"]) for entry in journal] == [signed(by, login, "one"), signed(by, login, "two")]
    assert line["paused_by"] == f"{by} (login {login})"


def test_the_api_needs_no_reason_and_refuses_one_that_hides_something(api: Callable[..., Any], queue: Driver) -> None:
    client, _ = api("ops")
    job_id = queue.enqueue()

    with client:
        hidden = client.post(f"/jobs/{job_id}/cancel", json={"reason": "a\x1bb"})
        plain = client.post(f"/jobs/{job_id}/cancel")

    assert (hidden.status_code, plain.status_code) == (422, 200)


def test_what_was_done_is_logged_whoever_did_it(app: Faultline, queue: Driver, log: io.StringIO) -> None:
    """Once the database has done it, and not before."""
    job_id = queue.enqueue()
    app.cancel(job_id, reason="withdrawn", by="billing")
    with pytest.raises(JobNotFound):
        app.cancel(uuid4(), by="billing")

    (line,) = logged(log, "job_cancelled_by_request")
    assert (line["job_id"], line["by"], line["reason"]) == (str(job_id), "billing", "withdrawn")


# The page


def test_the_page_names_the_key_that_signed_in_and_shows_who_did_what(dsn: str, queue: Driver, login: str) -> None:
    key_id, text = access.new_key(random.Random(1))
    queue.run(access.add(key_id, access.digest_of(text) or b"", name="ops", scopes=["admin"]))
    job_id, ticked, _ = queue.enqueue(queue="mail"), queue.enqueue(), failed(queue, "b")
    queue.connection.execute("select faultline.sample()")
    page = f"/jobs/{job_id}"
    with browsed(dsn) as site:
        site.post("/sign-in", {"key": text})
        site.send(page, f"{page}/cancel", reason="one")
        site.send(page, f"{page}/retry", reason="two")
        site.send("/jobs", "/jobs/ticked", id=str(ticked), do="cancel", reason="three")
        site.send("/failures/retry", "/failures/retry", reason="four")
        site.send("/queues", "/queues/pause", queue="mail", reason="five")
        held = site.page("/queues").text
        site.send("/queues", "/queues/resume", queue="mail", reason="six")
        shown, queues = site.page(page).text, site.page("/queues").text

    by = f"ops (API key {key_id.hex[:12]}, dashboard)"
    for event, reasons in {"cancelled": ["one", "three"], "retried": ["two", "four"], "paused": ["five"]}.items():
        assert [part(detail) for detail in told(queue, event)] == [signed(by, login, why) for why in reasons], event
    assert part(told(queue, "resumed")[0]) == signed(by, login, "six")
    assert f"by {by} (login {login}): five" in held
    for text in (by, "one", "two", login):
        assert text in shown
    for text in (by, "five", "six", login):
        assert text in queues


@pytest.mark.parametrize("reason", ["", "   "])
def test_the_page_cancels_nothing_without_a_reason(dsn: str, queue: Driver, reason: str) -> None:
    job_id = queue.enqueue()
    page = f"/jobs/{job_id}"
    with browsed(dsn) as site:
        answers = [
            site.send(page, f"{page}/cancel", reason=reason),
            site.send("/jobs", "/jobs/ticked", id=str(job_id), do="cancel", reason=reason),
        ]

    assert [answer.status_code for answer in answers] == [422, 422]
    assert "A reason is required" in answers[0].text
    assert queue.state(job_id) is JobState.QUEUED


def test_a_key_that_is_bound_to_queues_sees_who_paused_those_alone(dsn: str, queue: Driver) -> None:
    key_id, text = access.new_key(random.Random(1))
    queue.run(access.add(key_id, access.digest_of(text) or b"", name="mail team", scopes=["read"], queues=["mail"]))
    queue.run(verbs.pause("mail", "seen", by="somebody"))
    queue.run(verbs.pause("secret", "hidden", by="the secret team"))
    with browsed(dsn) as site:
        site.post("/sign-in", {"key": text})
        shown = site.page("/queues").text

    assert "somebody" in shown
    for hidden in ("the secret team", "hidden", "api_key", "mail team, key"):
        assert hidden not in shown


@pytest.mark.parametrize(("scope", "heard"), [("admin", ["api_key_added", "paused"]), ("read", ["paused"])])
def test_who_holds_which_key_is_told_to_administrators_alone(dsn: str, queue: Driver, scope: str, heard: list[str]) -> None:
    key_id, text = access.new_key(random.Random(1))
    queue.run(access.add(key_id, access.digest_of(text) or b"", name="a secret project", scopes=[scope]))
    queue.run(verbs.pause("mail", by="somebody"))
    with browsed(dsn) as site, running(dsn) as address, Api(address, text) as client:
        site.post("/sign-in", {"key": text})
        shown = site.page("/queues").text
        with client.http.stream("GET", "/api/v1/events", headers={"Last-Event-ID": "0"}) as stream:
            found = []
            for line in stream.iter_lines():
                if line.startswith("data: ") and '"detail"' in line:
                    found.append(json.loads(line.removeprefix("data: "))["event"])
                if found[-1:] == ["paused"]:
                    break

    assert found == heard
    assert ("a secret project" in shown.partition("Operations")[2]) == (scope == "admin")
