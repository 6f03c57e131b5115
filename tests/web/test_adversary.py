"""A hostile client, without a key or with one for little: it learns nothing of other queues, takes nothing from others."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from http.client import HTTPConnection
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from faultline.store import verbs
from faultline.web.auth.sessions import Sessions
from faultline.web.server.server import server
from tests.web.conftest import QUICK, Api, new_key, refused, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.driver import Driver

HEAD = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n"
HTML = {"Accept": "text/html"}


@pytest.fixture
def hurried(dsn: str) -> Iterator[str]:
    """A server that waits half a second for a request."""
    with running(dsn, replace(QUICK, request_seconds=0.5, heartbeat_seconds=0.1)) as found:
        yield found


def said(address: str, *texts: str) -> bytes:
    """What the server says to these, each sent when the one before was answered, until it hangs up."""
    place = urlsplit(address)
    heard = b""
    with socket.create_connection((place.hostname, place.port), timeout=20) as wire:
        for text in texts:
            heard += wire.recv(65536) if text is not texts[0] else b""
            wire.sendall(text.encode())
        while more := wire.recv(65536):
            heard += more
        return heard


# What belongs to other queues


def test_a_search_does_not_tell_whether_another_queues_job_exists(caller: Callable[..., Api], api: Api) -> None:
    bound, hidden = caller("read", queues=["a"]), api.submit(queue="b")

    answers = [bound.http.get("/jobs", params={"key": key}, headers=HTML) for key in (hidden, str(uuid4()))]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert bound.http.get("/jobs", params={"key": api.submit(queue="a")}, headers=HTML).status_code == 303


def test_the_workers_of_a_queue_do_not_tell_which_others_they_serve(caller: Callable[..., Api], db: Driver) -> None:
    for name, queues in (("w1", ["a", "secret"]), ("w2", ["secret"])):
        db.run(verbs.heartbeat(name, host="h", pid=1, version="1", queues=queues, sleeping=queues, watched=False))
    bound = caller("read", queues=["a"])

    page = bound.http.get("/workers", headers=HTML)

    assert page.status_code == 200
    assert "w1" in page.text
    assert "w2" not in page.text
    assert "secret" not in page.text
    assert "secret" not in bound.get("/workers").text


def test_a_preview_does_not_tell_when_other_queues_jobs_failed(caller: Callable[..., Api], api: Api, db: Driver) -> None:
    bound = caller("read", "operate", queues=["a"])
    api.submit(queue="b")
    db.fail(db.claim_one(queue="b"), then="fail")

    answer = bound.post("/jobs/retry", json={"preview": True}).json()

    assert answer == {"preview": True, "jobs": 0, "refused": 0, "at_least": False, "next_cursor": None}


# What belongs to everybody


@pytest.mark.long
def test_a_body_is_not_read_for_who_has_no_key(api: Api, address: str) -> None:
    """None is sent here: an answer can only come from who does not wait for it."""
    answer = said(address, f"{HEAD}Authorization: Bearer fl_nonsense\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 401")


def test_a_body_that_never_ends_is_given_up(hurried: str) -> None:
    answer = said(hurried, f'{HEAD}\r\n{{"task": ')

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"BodyTooSlow" in answer


@pytest.mark.parametrize(
    ("texts", "answers"),
    [([""], 0), (["GET /health HTTP/1.1\r\nHost: x"], 0), (["GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "GET /he"], 1)],
)
def test_a_connection_that_never_asks_to_the_end_is_closed(hurried: str, texts: list[str], answers: int) -> None:
    assert said(hurried, *texts).count(b"HTTP/1.1 200") == answers


def test_a_connection_that_asks_now_and_then_is_kept(hurried: str) -> None:
    """However often it is looked at between two requests."""
    place = urlsplit(hurried)
    wire = HTTPConnection(place.hostname or "", place.port, timeout=20)
    wire.connect()
    first, until = wire.sock, time.monotonic() + 1.5

    while time.monotonic() < until:
        wire.request("GET", "/health")
        assert wire.getresponse().read() == b'{"status":"up"}'
        time.sleep(0.05)

    assert wire.sock is first
    wire.close()


def test_a_stream_that_is_quiet_is_not_taken_for_silent(hurried: str) -> None:
    """It gives a sign of life ten times a second; twelve take longer than any request may, and a look at who is silent."""
    with Api(hurried) as api, api.http.stream("GET", "/api/v1/events") as stream:
        lines = (line for line in stream.iter_lines() if line == ": alive")

        assert [next(lines) for _ in range(12)] == [": alive"] * 12


def test_who_signs_in_again_and_again_signs_nobody_else_out() -> None:
    sessions = Sessions()
    other = sessions.open(b"other")

    mine = [sessions.open(b"mine") for _ in range(1100)]

    assert sessions.find(other.id) is other
    assert sessions.find(mine[-1].id) is mine[-1]
    assert sessions.find(mine[0].id) is None


def test_nobody_takes_all_live_streams(dsn: str, db: Driver) -> None:
    limits = replace(QUICK, streams_max=3, streams_caller_max=1)
    keys = [new_key(db, "read")[1] for _ in range(2)]
    with running(dsn, limits) as address, Api(address, keys[0]) as greedy, Api(address, keys[1]) as other:
        first, second = (greedy.http.stream("GET", "/api/v1/events") for _ in range(2))
        with first as granted, second as denied, other.http.stream("GET", "/api/v1/events") as theirs:
            assert (granted.status_code, denied.status_code, theirs.status_code) == (200, 429, 200)
            denied.read()
            refused(denied, 429, "TooManyStreams")


def test_nobody_takes_all_connections_that_others_read_with(dsn: str, db: Driver) -> None:
    keys = [new_key(db, "read")[1] for _ in range(2)]
    with (
        running(dsn) as address,
        Api(address, keys[0]) as greedy,
        Api(address, keys[1]) as other,
        ThreadPoolExecutor(12) as threads,
    ):
        with db.connection.transaction():
            db.connection.execute("lock table faultline.open_jobs in access exclusive mode")  # a list takes for ever
            asked = [threads.submit(greedy.get, "/jobs") for _ in range(12)]
            answered = (one.result() for one in as_completed(asked))
            first = next(answered)  # by then, whoever got a connection has had it for a second

            spared = other.get("/queues")
            assert spared.status_code == 200, spared.text
            later = list(islice(answered, 6))
        assert [answer.status_code for answer in answered] == [200] * 5

    for answer in (first, *later):
        refused(answer, 429, "TooManyReads")
        assert answer.headers["retry-after"] == "2"


def test_a_page_that_reads_several_things_takes_turns_with_itself(dsn: str) -> None:
    with running(dsn, replace(QUICK, reads_caller_max=1)) as address, Api(address) as api:
        assert api.http.get("/", headers=HTML).status_code == 200


def test_names_of_queues_that_somebody_makes_up_are_not_all_remembered(dsn: str) -> None:
    ready = server(dsn, port=0, limits=QUICK)
    numbers = ready.config.app.state.service.numbers  # type: ignore[union-attr]
    with running(dsn, ready=ready) as address, Api(address) as api:
        for batch in range(3):
            jobs = [{"task": "t", "queue": f"q{batch}-{number}"} for number in range(1000)]
            assert api.post("/jobs/batch", json={"jobs": jobs}).status_code == 201
        told = api.http.get("/metrics").text

    assert len(numbers._enqueued) <= 101  # noqa: SLF001 - what it remembers shows nowhere else
    assert 'faultline_jobs_enqueued_total{queue="other"} 2900.0' in told


# What makes no sense


def test_two_members_of_one_name_are_refused(api: Api, db: Driver) -> None:
    for body in ('{"task": "a", "task": "b"}', '{"task": "a", "args": {"x": {"y": 1, "y": 1}}}'):
        answer = api.post("/jobs", content=body, headers={"Content-Type": "application/json"})
        refused(answer, 400, "NameTwice")

    assert db.claim() == []


def test_words_that_are_too_long_for_the_database_are_no_fault_of_ours(dsn: str, db: Driver) -> None:
    job_id = db.enqueue()
    with running(dsn) as address, Api(address) as api:
        token = api.http.get(f"/jobs/{job_id}", headers=HTML).text.partition('name="csrf" value="')[2].partition('"')[0]
        form = {"csrf": token, "reason": "x" * 5000}

        paused = api.http.post("/queues/pause", data={**form, "queue": "mail"}, headers=HTML)
        unknown = api.http.post("/queues/pause", data={**form, "queue": "q" * 101}, headers=HTML)
        cancelled = api.http.post(f"/jobs/{job_id}/cancel", data=form, headers=HTML)

    assert (paused.status_code, unknown.status_code, cancelled.status_code) == (303, 404, 303)
    assert db.value("select length(paused_reason) from faultline.queues") == 1000


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/", "/static/%00"],
)
def test_no_file_but_our_own_is_served(api: Api, address: str, path: str) -> None:
    answer = said(address, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert answer.split(b" ", 2)[1] in (b"404", b"400")
    assert b"create_app" not in answer


def test_a_method_in_a_header_is_none(api: Api) -> None:
    headers = {"X-HTTP-Method-Override": "POST", "X-Method-Override": "DELETE"}

    assert api.get("/jobs", headers=headers).json()["jobs"] == []
    refused(api.http.request("GET", f"/api/v1/jobs/{uuid4()}/cancel", headers=headers), 405, "MethodNotAllowed")
