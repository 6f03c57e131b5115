"""Live changes: one look for all, at least once, and nobody slows the others down."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

from faultline.core.host import Host
from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.reads import changes
from faultline.store.verbs import access
from faultline.web.auth.caller import Caller
from faultline.web.live.changes import Changes
from faultline.web.server.databases import Limits
from faultline.web.server.service import Service
from tests.web.conftest import QUICK, Api, refused, running, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.driver import Driver


def test_a_line_of_the_journal_is_told_to_who_watches(api: Api, db: Driver) -> None:
    job_id = api.submit()
    with api.http.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert stream.headers["content-type"].startswith("text/event-stream")
        told(lines, "queues")

        db.fail(db.claim_one(), error="boom")

        number, line = told(lines, "journal")
    assert (line["job_id"], line["event"], line["queue"]) == (job_id, "attempt_failed", "default")
    assert number == str(line["id"])


def test_a_stream_that_is_taken_up_again_misses_nothing(api: Api, db: Driver) -> None:
    for _ in range(3):
        api.submit()
        db.fail(db.claim_one(), then="fail")
    first, *later = run_on(db.connection, changes.since(0, lines_max=10))

    with api.http.stream("GET", "/api/v1/events", headers={"Last-Event-ID": str(first.id)}) as stream:
        lines = stream.iter_lines()
        assert [told(lines, "journal")[1]["id"] for _ in later] == [change.id for change in later]


@pytest.mark.parametrize("number", ["x", "-1", "9" * 19])
def test_a_number_that_is_none_is_refused(api: Api, number: str) -> None:
    refused(api.get("/events", headers={"Last-Event-ID": number}), 422, "InvalidRequest")


def test_a_key_that_is_bound_to_queues_hears_of_their_jobs_alone(caller: Callable[..., Api], api: Api, db: Driver) -> None:
    bound = caller("read", queues=["a"])
    for queue in ("b", "a"):
        api.submit(queue=queue)
    before, _ = run_on(db.connection, changes.end())
    for queue in ("b", "a"):
        db.fail(db.claim_one(queue=queue), then="fail")

    with bound.http.stream("GET", "/api/v1/events", headers={"Last-Event-ID": str(before)}) as stream:
        lines = stream.iter_lines()
        assert told(lines, "journal")[1]["queue"] == "a"
        while not (queues := told(lines, "queues")[1]):
            pass  # what was known when the stream began
        assert [queue["name"] for queue in queues] == ["a"]
        api.submit(queue="b")
        api.submit(queue="a")
        db.fail(db.claim_one(queue="b"), then="fail")
        db.fail(db.claim_one(queue="a"), then="fail")
        assert told(lines, "journal")[1]["queue"] == "a"


def test_progress_is_told_while_a_job_runs_and_kept_when_it_has_ended(
    caller: Callable[..., Api], api: Api, db: Driver
) -> None:
    stranger = caller("read", queues=["other"])
    job_id = api.submit(queue="a")
    lease = db.claim_one(queue="a")

    with (
        api.http.stream("GET", "/api/v1/events") as stream,
        stranger.http.stream("GET", "/api/v1/events") as strangers,
    ):
        lines = stream.iter_lines()
        db.run(verbs.progress(lease, {"done": 1}))
        _, first = told(lines, "progress")
        db.run(verbs.progress(lease, {"done": 2}))
        db.complete(lease)
        _, last = told(lines, "progress")
        while last["state"] == "running":
            _, last = told(lines, "progress")
        api.submit(queue="other")
        db.run(verbs.progress(db.claim_one(queue="other"), "theirs"))
        _, theirs = told(strangers.iter_lines(), "progress")

    assert (first["job_id"], first["queue"], first["state"], first["progress"]) == (str(job_id), "a", "running", {"done": 1})
    assert (last["job_id"], last["state"], last["progress"]) == (str(job_id), "succeeded", {"done": 2})
    assert theirs["progress"] == "theirs"
    assert api.get(f"/jobs/{job_id}").json()["progress"] == {"done": 2}


def test_a_line_that_was_committed_late_is_told_too(dsn: str, db: Driver) -> None:
    """Numbers are given out before they are committed."""
    insert = "insert into faultline.journal (at, job_id, event) values (now(), null, 'recovered')"

    async def story() -> list[tuple[str, int]]:
        service = Service(dsn, limits=Limits(), loopback_only=True)
        source = Changes(service, service.shares)
        client = await source.join(Caller("x", "x", frozenset({"read"})))
        with db.connection.transaction():
            db.connection.execute(insert)
            async with await service.read.connect() as other:
                await other.execute(insert)
            await source.tick()
        await source.tick()
        await service.close()
        found = []
        while not client.waiting.empty():
            text = client.waiting.get_nowait() or b""
            if text.startswith(b"event: journal"):
                found.append(numbers(text))
        return found

    (first_settled, first), (second_settled, second) = asyncio.run(story())

    assert (first, second) == (2, 1)
    assert (first_settled, second_settled) == ("0", "2"), "nobody is told to go on behind a line that is missing"


def test_a_line_whose_transaction_was_open_when_a_stream_began_is_told_too(dsn: str, db: Driver) -> None:
    insert = "insert into faultline.journal (at, job_id, event) values (now(), null, 'recovered')"

    async def story() -> tuple[list[bytes], list[bytes]]:
        service = Service(dsn, limits=Limits(), loopback_only=True)
        source = Changes(service, service.shares)
        caller = Caller("x", "x", frozenset({"read"}))
        with db.connection.transaction():
            db.connection.execute(insert)
            async with await service.read.connect() as other:
                await other.execute(insert)
            client = await source.join(caller)
            missed = await source.missed(caller, 0)
            await source.tick()
        await source.tick()
        await service.close()
        return missed, [client.waiting.get_nowait() or b"" for _ in range(client.waiting.qsize())]

    missed, live = asyncio.run(story())

    assert [numbers(text) for text in missed] == [("0", 2)], "nobody is told to go on behind a line that is missing"
    assert [numbers(text) for text in live if text.startswith(b"event: journal")] == [("2", 1)]


def test_a_number_is_waited_for_as_long_as_its_transaction_is_open_and_no_longer(dsn: str, db: Driver) -> None:
    insert = "insert into faultline.journal (at, job_id, event) values (now(), null, 'recovered')"
    now = {"now": 0.0}

    async def story() -> list[bytes]:
        service = Service(dsn, limits=Limits(), loopback_only=True, host=Host(monotonic=lambda: now["now"]))
        source = Changes(service, service.shares)
        client = await source.join(Caller("x", "x", frozenset({"read"})))
        async with await service.read.connect() as other:
            with db.connection.transaction():
                db.connection.execute(insert)
                await other.execute(insert)
                for _ in range(4):
                    await source.tick()
                    now["now"] += 11
            await source.tick()  # and 1 comes late
            with db.connection.transaction(force_rollback=True):
                db.connection.execute(insert)
            await other.execute(insert)
            await source.tick()
            now["now"] += 11
            await source.tick()
            await other.execute(insert)
            await source.tick()
        await service.close()
        return [client.waiting.get_nowait() or b"" for _ in range(client.waiting.qsize())]

    live = [numbers(text) for text in asyncio.run(story()) if text.startswith(b"event: journal")]

    assert live == [("0", 2), ("2", 1), ("2", 4), ("5", 5)], "3 was rolled back, and 10 seconds later nobody waits for it"


def numbers(text: bytes) -> tuple[str, int]:
    """Where to go on after this line, and its own number."""
    lines = dict(line.split(": ", 1) for line in text.decode().strip().split("\n"))
    return lines["id"], json.loads(lines["data"])["id"]


def test_who_does_not_keep_up_is_let_go_and_told_why(dsn: str) -> None:
    async def story() -> tuple[str | None, list[bytes | None]]:
        service = Service(dsn, loopback_only=True)
        client = await Changes(service, service.shares).join(Caller("x", "x", frozenset({"read"})))
        for _ in range(300):
            client.send(b"event: journal\n\n")
        await service.close()
        return client.ended, [client.waiting.get_nowait() for _ in range(client.waiting.qsize())]

    assert asyncio.run(story()) == ("too_slow", [None])


def test_a_stop_ends_the_streams_with_a_word(dsn: str) -> None:
    lines: list[str] = []
    with running(dsn) as address:
        opened = threading.Event()

        def watch() -> None:
            with httpx.stream("GET", f"{address}/api/v1/events", timeout=30, verify=False) as stream:  # noqa: S501
                for line in stream.iter_lines():
                    opened.set()
                    lines.append(line)

        thread = threading.Thread(target=watch)
        thread.start()
        assert opened.wait(20)
    thread.join(20)

    assert lines[-3:-1] == ["event: end", 'data: {"reason":"closing"}']


def test_a_stream_ends_by_itself_and_is_taken_up_where_it_ended(dsn: str, db: Driver) -> None:
    """Also one that is never quiet."""
    with running(dsn, replace(QUICK, stream_seconds=3)) as address, Api(address) as api:
        with api.http.stream("GET", "/api/v1/events") as stream:
            lines = stream.iter_lines()
            told(lines, "queues")
            for _ in range(3):
                db.connection.execute("insert into faultline.journal (at, event) values (now(), 'recovered')")
            number, line = told(lines, "journal")
            assert told(lines, "end")[1] == {"reason": "old"}

        with api.http.stream("GET", "/api/v1/events", headers={"Last-Event-ID": str(number)}) as stream:
            assert told(stream.iter_lines(), "journal")[1]["id"] == line["id"] + 1


@pytest.mark.parametrize("busy", [False, True])
def test_a_revoked_key_loses_its_stream_however_much_it_is_told(dsn: str, db: Driver, busy: bool) -> None:  # noqa: FBT001
    key_id, text = access.new_key(random.SystemRandom())
    run_on(db.connection, access.add(key_id, access.digest_of(text) or b"", name="n", scopes=["read"]))
    limits = replace(QUICK, heartbeat_seconds=0.5 if busy else 0.1)

    with running(dsn, limits) as address, Api(address, text) as api, api.http.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        told(lines, "queues")
        run_on(db.connection, access.revoke(key_id))
        for _ in range(40 if busy else 0):
            db.connection.execute("insert into faultline.journal (at, event) values (now(), 'recovered')")
        assert told(lines, "end")[1] == {"reason": "signed_out"}


def test_there_are_no_more_streams_than_the_server_allows_and_who_has_gone_is_forgotten(dsn: str) -> None:
    with running(dsn, replace(QUICK, streams_max=1)) as address, Api(address) as api:
        with api.http.stream("GET", "/api/v1/events") as stream:
            lines = stream.iter_lines()  # kept: who drops it hangs up
            told(lines, "queues")
            refused(api.get("/events"), 503, "TooManyStreams")

        deadline = time.monotonic() + 20
        while _opens(address) != 200:
            assert time.monotonic() < deadline


def _opens(address: str) -> int:
    """Ask for a stream and hang up without a word."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port)) as wire:
        wire.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return int(wire.recv(100).split()[1])


def test_fifty_watchers_ask_no_more_of_the_database_than_one(dsn: str) -> None:
    async def story() -> list[str]:
        service = Service(dsn, loopback_only=True)
        source = Changes(service, service.shares)
        for _ in range(50):
            await source.join(Caller("x", "x", frozenset({"read"})))
        sent: list[str] = []
        service.read = _Counting(service.read, sent)  # type: ignore[assignment]
        await source.tick()
        await service.operate.close()
        return sent

    assert asyncio.run(story()) == ["changes", "overview", "progress_of_jobs"]


class _Counting:
    """The same database, with a list of what was asked."""

    def __init__(self, database: Any, sent: list[str]) -> None:
        self._database = database
        self._sent = sent

    async def run(self, statement: Any) -> Any:
        self._sent.append(statement.name)
        return await self._database.run(statement)
