"""Streams of jobs over HTTP: readers come and go, fall behind, are many, and hold nothing up."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

from faultline.store.database import run_on
from faultline.store.verbs import access, streams
from faultline.web.server.server import server
from tests.waiting import until
from tests.web.conftest import QUICK, Api, new_key, refused, running, told

if TYPE_CHECKING:
    from tests.driver import Driver

READERS = 200


def written(db: Driver, *items: str) -> Any:
    """A running job with a stream."""
    lease = db.new_lease()
    db.run(streams.stream(lease, "tokens", 0, json.dumps(items)))
    return lease


def path(lease: Any) -> str:
    return f"/api/v1/jobs/{lease.job_id}/stream?name=tokens"


def test_a_reader_that_was_cut_off_goes_on_behind_the_last_item_that_it_was_told(api: Api, db: Driver) -> None:
    lease = written(db, "a")
    with api.http.stream("GET", path(lease)) as stream:
        where, first = told(stream.iter_lines(), "chunk")
    db.run(streams.stream(lease, "tokens", 1, '["b"]'))

    with api.http.stream("GET", path(lease), headers={"Last-Event-ID": str(where)}) as stream:
        lines = stream.iter_lines()
        _, second = told(lines, "chunk")
        db.complete(lease)
        _, end = told(lines, "end")

    assert (first, second, end) == (["a"], ["b"], {"reason": "succeeded"})


@pytest.mark.parametrize("where", ["x", "1", "1p1", "1~1~1", "1p1p1p1", f"1p{'9' * 10}p1", "-1p1p1"])
def test_a_place_that_is_none_is_refused(api: Api, db: Driver, where: str) -> None:
    refused(api.http.get(path(written(db, "a")), headers={"Last-Event-ID": where}), 422, "InvalidRequest")


def test_a_reader_that_says_nothing_is_told_that_the_stream_lives_and_who_has_gone_is_forgotten(
    dsn: str, db: Driver
) -> None:
    lease = written(db, "a")
    ready = server(dsn, port=0, limits=replace(QUICK, heartbeat_seconds=0.05, streams_caller_max=1))
    followers = ready.config.app.state.service.followers  # type: ignore[union-attr]

    with running(dsn, ready=ready) as address, Api(address, new_key(db)[1]) as api:
        with api.http.stream("GET", path(lease)) as stream:
            lines = stream.iter_lines()
            assert any(line == ": alive" for line in lines)
            refused(httpx.get(address + path(lease), headers=api.http.headers), 429, "TooManyStreams")
        until(lambda: not len(followers))
        with api.http.stream("GET", path(lease)) as stream:
            assert told(stream.iter_lines(), "chunk")[1] == ["a"]


def test_a_revoked_key_loses_its_stream(dsn: str, db: Driver) -> None:
    lease, (key_id, key) = written(db, "a"), new_key(db)

    with (
        running(dsn, replace(QUICK, heartbeat_seconds=0.05)) as address,
        Api(address, key) as api,
        api.http.stream("GET", path(lease)) as stream,
    ):
        lines = stream.iter_lines()
        told(lines, "chunk")
        run_on(db.connection, access.revoke(key_id))
        _, end = told(lines, "end")

    assert end == {"reason": "signed_out"}


def test_a_stop_ends_the_streams_with_a_word(dsn: str, db: Driver) -> None:
    lease, (_, key) = written(db, "a"), new_key(db)

    with ExitStack() as stack:
        ready = server(dsn, port=0, limits=QUICK)
        serving = running(dsn, ready=ready)
        address = serving.__enter__()
        api = stack.enter_context(Api(address, key))
        lines = stack.enter_context(api.http.stream("GET", path(lease))).iter_lines()
        told(lines, "chunk")
        stopping = threading.Thread(target=serving.__exit__, args=(None, None, None))
        stopping.start()
        _, end = told(lines, "end")
        stopping.join(20)

    assert end == {"reason": "closing"}


@pytest.mark.long
def test_two_hundred_readers_share_the_few_connections_of_the_server_and_hold_none(dsn: str, db: Driver) -> None:
    lease = written(db, "a")
    keys = [new_key(db)[1] for _ in range(4)]

    async def read(client: httpx.AsyncClient, key: str, begun: asyncio.Semaphore) -> list[str]:
        told = []
        async with client.stream("GET", path(lease), headers={"Authorization": f"Bearer {key}"}) as stream:
            assert stream.status_code == 200, await stream.aread()
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    told.append(line.removeprefix("data: "))
                    begun.release()
        return told

    async def story(address: str) -> list[list[str]]:
        begun = asyncio.Semaphore(0)
        limits = httpx.Limits(max_connections=READERS)
        async with (
            httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client,
            asyncio.timeout(120),
            asyncio.TaskGroup() as group,
        ):
            readers = [group.create_task(read(client, keys[number % 4], begun)) for number in range(READERS)]
            for _ in range(READERS):
                await begun.acquire()
            connections = db.value(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            )
            assert connections < 40
            db.run(streams.stream(lease, "tokens", 1, '["b"]'))
            db.complete(lease)
        return [reader.result() for reader in readers]

    with running(dsn, replace(QUICK, key_seconds=60.0, connect_seconds=30.0)) as address:
        found = asyncio.run(story(address))

    assert found == [['["a"]', '["b"]', '{"reason":"succeeded"}']] * READERS


def test_a_reader_that_takes_nothing_holds_no_connection_of_the_database(dsn: str, db: Driver) -> None:
    """The server waits until it can send, between two looks at the database."""
    lease, (_, key) = db.new_lease(), new_key(db)
    for number in range(8):
        db.run(streams.stream(lease, "tokens", number, json.dumps(["x" * 1_000_000])))

    with running(dsn) as address, socket.socket() as slow, Api(address, key) as api:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((urlsplit(address).hostname, urlsplit(address).port))
        slow.sendall(f"GET {path(lease)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        assert slow.recv(15).startswith(b"HTTP/1.1 200")

        assert api.get(f"/jobs/{lease.job_id}").json()["state"] == "running"
        busy = "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"
        assert db.value(busy) == 0
