"""What no client of good will sends. Each has an answer of its own, nothing is written, and the server goes on."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from faultline_proof.proxy import Moment, Proxy
from tests.conftest import clone
from tests.web.conftest import QUICK, Api, away, refused, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Servers
    from tests.driver import Driver

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def shared(servers: Servers) -> Iterator[Api]:
    """One server for all that leaves no trace."""
    with clone(servers.template("default")) as dsn, running(dsn) as address, Api(address) as api:
        yield api


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"task": 5},
        {"task": ""},
        {"task": "x" * 201},
        {"task": "a\x00b"},
        {"task": "t", "queue": "\x00"},
        {"task": "t", "queue": "q" * 101},
        {"task": "t", "queue": " "},
        {"task": "t", "queue": "a\tb"},
        {"task": "t", "queue": "a "},
        {"task": "t", "queue": "\u2003"},
        {"task": "t", "queue": "a\u202eb"},
        {"task": "t", "group": "a\u2066b"},
        {"task": "t", "args": []},
        {"task": "t", "args": None},
        {"task": "t", "priority": "5"},
        {"task": "t", "priority": 1.5},
        {"task": "t", "priority": True},
        {"task": "t", "priority": 1001},
        {"task": "t", "delay_seconds": -1},
        {"task": "t", "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"},
        {"task": "t", "run_at": "2030-01-01T00:00:00"},
        {"task": "t", "run_at": "0001-01-01T00:00:00Z"},
        {"task": "t", "run_at": 5},
        {"task": "t", "max_attempts": 0},
        {"task": "t", "unknown": 1},
        {"task": "t", "id": "00000000-0000-7000-8000-000000000001"},
        {"task": "t", "idempotency_key": "k"},
        {"task": "t", "args": {"a": "\x00"}},
        {"task": "t", "args": {"\x00": 1}},
        [],
        "text",
        None,
    ],
)
def test_a_job_that_makes_no_sense_is_refused(shared: Api, body: Any) -> None:
    answer = shared.post("/jobs", json=body)

    refused(answer, 422, answer.json()["code"])
    assert answer.json()["code"] in ("InvalidRequest", "JobRejected")
    assert shared.get("/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"task": "t", "args": ' + b'{"a":' * 70 + b"1" + b"}" * 71, "JsonTooDeep"),
        (b"[" * 100_000, "JsonTooDeep"),
        (b'{"task": "t", "args": {"a": ' + b"9" * 30 + b"}}", "NumberTooLarge"),
        (b'{"task": "t", "args": {"a": ' + b"9" * 10_000 + b"}}", "NumberTooLarge"),
        (b'{"task": "t", "args": {"a": NaN}}', "NoJson"),
        (b'{"task": "t", "args": {"a": -Infinity}}', "NoJson"),
        (b'\xff\xfe{"task"', "NoJson"),
    ],
)
def test_json_that_nobody_should_send_is_refused(shared: Api, content: bytes, code: str) -> None:
    refused(shared.post("/jobs", content=content, headers=JSON), 400, code)


@pytest.mark.parametrize("content", [b"{", b'{"task": "t",}', b"\x00", b"", b'{"task": "\\ud800"}'])
def test_what_is_no_json_is_refused(shared: Api, content: bytes) -> None:
    refused(shared.post("/jobs", content=content, headers=JSON), 422, "InvalidRequest")


def test_another_kind_of_content_is_refused(shared: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        refused(shared.post("/jobs", content=b'{"task": "t"}', headers={"Content-Type": kind}), 422, "InvalidRequest")


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(shared: Api) -> None:
    size = QUICK.body_bytes_max + 1

    refused(shared.post("/jobs", content=b"x" * size, headers=JSON), 413, "BodyTooLarge")
    refused(
        shared.post("/jobs", content=(b"x" * 65536 for _ in range(size // 65536 + 1)), headers=JSON), 413, "BodyTooLarge"
    )


def test_arguments_larger_than_the_database_allows_are_refused(shared: Api) -> None:
    answer = shared.post("/jobs", json={"task": "t", "args": {"a": "x" * 1_100_000}})

    assert "more than the limit" in refused(answer, 422, "JobRejected")["detail"]


def test_pages_and_batches_have_a_largest_size(shared: Api) -> None:
    refused(shared.get("/jobs?limit=201"), 422, "InvalidRequest")
    refused(shared.get("/jobs?limit=0"), 422, "InvalidRequest")
    refused(shared.post("/jobs/batch", json={"jobs": [{"task": "t"}] * 1001}), 422, "InvalidRequest")
    refused(shared.post("/jobs/batch", json={"jobs": []}), 422, "InvalidRequest")


@pytest.mark.parametrize(
    "query",
    [
        "state=done",
        "queue=%00",
        "queue=",
        "offset=5",
        "created_after=yesterday",
        "created_after=2020-01-01",
        "limit=x",
        "key=",
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(shared: Api, query: str) -> None:
    refused(shared.get(f"/jobs?{query}"), 422, "InvalidRequest")


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "\u00e9"])
def test_an_idempotency_key_that_is_none_is_refused(shared: Api, key: str) -> None:
    answer = shared.post("/jobs", json={"task": "t"}, headers={"Idempotency-Key": key.encode("latin-1")})

    refused(answer, 422, "InvalidRequest")


def test_unknown_places_and_methods_are_told_apart(shared: Api) -> None:
    refused(shared.http.get("/nowhere"), 404, "NotFound")
    for path in ("/jobs/nonsense", "/jobs/0198c2e4"):
        assert refused(shared.get(path), 404, "JobNotFound")["detail"] == "Invalid job id."
    refused(shared.post("/jobs/nonsense/cancel"), 404, "JobNotFound")
    refused(shared.get("/jobs/nonsense/nowhere"), 404, "NotFound")
    answer = shared.http.delete("/api/v1/jobs")
    refused(answer, 405, "MethodNotAllowed")
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path", "body", "fault"),
    [
        ("GET", "/jobs?cursor=junk", None, "Use `next_cursor` of the previous answer."),
        ("POST", "/jobs/cancel", {"cursor": "junk"}, "Use `next_cursor` of the previous answer."),
        ("POST", "/jobs/retry", {"cursor": "junk"}, "Use `next_cursor` of the previous answer."),
        ("POST", "/queues/mail/pause", {"reason": "a\u0001b"}, "No control characters, but for tabs and line ends."),
        ("POST", "/jobs", {"task": "t", "queue": " q"}, "No control characters, and no white space at either end."),
        ("POST", "/jobs", {"task": "a\u0000b"}, "The character NUL is not allowed."),
    ],
)
def test_what_is_wrong_with_a_text_is_told_in_words(shared: Api, method: str, path: str, body: object, fault: str) -> None:
    told = refused(shared.http.request(method, f"/api/v1{path}", json=body), 422, "InvalidRequest")

    assert [found["fault"] for found in told["errors"]] == [fault]


def test_a_job_that_is_not_there_is_told_of_in_one_text(shared: Api) -> None:
    path = "/jobs/00000000-0000-0000-0000-000000000001"

    answers = shared.get(path), shared.post(f"{path}/cancel"), shared.post(f"{path}/retry")

    (text,) = {refused(answer, 404, "JobNotFound")["detail"] for answer in answers}
    assert text.startswith("no job 00000000-0000-0000-0000-000000000001; it was never enqueued in this database")


def test_half_a_request_and_a_flood_of_them_leave_the_server_well(shared: Api) -> None:
    place = urlsplit(shared.address)
    broken = []
    for _ in range(50):
        wire = socket.create_connection((place.hostname, place.port))
        wire.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        broken.append(wire)
    garbage = socket.create_connection((place.hostname, place.port))
    garbage.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")

    assert shared.get("/health").json() == {"status": "up"}
    for wire in (*broken, garbage):
        wire.close()
    assert shared.get("/jobs").status_code == 200


def test_a_statement_that_takes_too_long_is_given_up_and_said_to_be(dsn: str, db: Driver) -> None:
    with running(dsn, replace(QUICK, statement_seconds=2.0)) as address, Api(address) as api:
        job_id = api.submit()
        with db.connection.transaction():
            db.connection.execute("select from faultline.open_jobs where id = %s for update", (job_id,))

            late = api.post(f"/jobs/{job_id}/cancel")

        refused(late, 504, "StatementTimeout")
        assert api.post(f"/jobs/{job_id}/cancel").status_code == 200


def test_while_the_database_is_away_it_is_said_and_afterwards_all_is_well(dsn: str) -> None:
    with running(dsn, replace(QUICK, connect_seconds=0.3)) as address, Api(address) as api:
        api.submit()

        with away(dsn):
            answers = [api.get("/jobs"), api.post("/jobs", json={"task": "t"}), api.post("/jobs", json={"task": "t"})]
            while (ready := api.get("/ready")).status_code == 200:  # an answer is good for a second
                time.sleep(0.1)
            assert api.get("/health").status_code == 200

        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["code"] in ("DatabaseUnavailable", "OutcomeUnknown")
            assert answer.headers["retry-after"]
            assert "dbname" not in answer.text
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        while api.get("/ready").status_code != 200:
            time.sleep(0.1)
        assert len(api.get("/jobs").json()["jobs"]) == 1


def test_a_submission_whose_outcome_is_unknown_says_so_and_can_be_sent_again(dsn: str, db: Driver) -> None:
    with Proxy(dsn, lambda *_, **__: None) as proxy, running(proxy.dsn) as address, Api(address) as api:
        body, headers = {"task": "t"}, {"Idempotency-Key": "k"}
        api.submit("other")
        for _ in range(3):
            proxy.cut("enqueue_many", Moment.AFTER_COMMITTED)

        unknown = api.post("/jobs", json=body, headers=headers)
        again = api.post("/jobs", json=body, headers=headers)

        told = refused(unknown, 503, "OutcomeUnknown")
        assert "same Idempotency-Key" in told["next_step"]
        assert again.status_code == 201
        assert [lease.task for lease in db.claim()] == ["other", "t"]


def test_a_lost_answer_is_asked_for_again_and_makes_one_job(dsn: str, db: Driver) -> None:
    with Proxy(dsn, lambda *_, **__: None) as proxy, running(proxy.dsn) as address, Api(address) as api:
        cut = proxy.cut("enqueue_one", Moment.AFTER_COMMITTED)

        api.submit()

        assert cut.happened.is_set()
        assert len(db.claim()) == 1
