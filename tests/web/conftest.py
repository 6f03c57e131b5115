"""A real server on a real PostgreSQL, in a thread of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.store.database import run_on
from faultline.store.verbs import access
from faultline.web.server.databases import Limits
from faultline.web.server.server import Server, server
from tests.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

#: A key that was revoked is refused at once: the tests need not wait for it.
QUICK = Limits(key_seconds=0.0, statement_seconds=5.0, connect_seconds=1.0, connections_ready=0)


class Attentive(Server):
    """Looks ten times as often whether it is to stop: every test waits for that."""

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            await asyncio.sleep(0.01)


def told(lines: Iterator[str], kind: str) -> tuple[str | None, Any]:
    """The next event of this kind: its id and what it says."""
    found: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif found.get("event") == kind:
            return found.get("id"), json.loads(found["data"])
        else:
            found = {}
    pytest.fail(f"the stream ended without the event {kind}")


@contextlib.contextmanager
def running(dsn: str, limits: Limits = QUICK, *, ready: Server | None = None) -> Iterator[str]:
    """The address of a server that runs until the block ends."""
    ready = Attentive((ready or server(dsn, port=0, limits=limits)).config)
    thread = threading.Thread(target=ready.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not ready.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline, "the server did not start in time"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{ready.servers[0].sockets[0].getsockname()[1]}"
    finally:
        ready.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def away(dsn: str) -> Iterator[None]:
    """Nobody gets in, and who is in is thrown out."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as admin:
        set_open = sql.SQL("alter database {} allow_connections {}")
        admin.execute(set_open.format(sql.Identifier(name), sql.SQL("false")))
        try:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
            yield
        finally:
            admin.execute(set_open.format(sql.Identifier(name), sql.SQL("true")))


class Api:
    """A client with a key."""

    def __init__(self, address: str, key: str | None = None, key_id: UUID | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.address = address
        self.key = key
        self.key_id = key_id
        self.http = httpx.Client(base_url=address, headers=headers, timeout=30, verify=False)  # noqa: S501 - plain HTTP

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str, **words: Any) -> httpx.Response:
        return self.http.get(_full(path), **words)

    def post(self, path: str, **words: Any) -> httpx.Response:
        return self.http.post(_full(path), **words)

    def submit(self, task: str = "t", **fields: Any) -> str:
        answer = self.post("/jobs", json={"task": task, **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


def _full(path: str) -> str:
    return path if path.startswith(("/health", "/ready", "/openapi", "//")) else f"/api/v1{path}"


@pytest.fixture
def db(dsn: str) -> Iterator[Driver]:
    """The owner's own session, with the verbs on it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Driver(connection)


@pytest.fixture
def address(dsn: str) -> Iterator[str]:
    with running(dsn) as found:
        yield found


def new_key(db: Driver, *scopes: str, **fields: Any) -> tuple[UUID, str]:
    """A new key: its id, and what is shown."""
    key_id, text = access.new_key(random.SystemRandom())
    digest = access.digest_of(text) or b""
    run_on(db.connection, access.add(key_id, digest, name="test", scopes=scopes or ["admin"], **fields))
    return key_id, text


@pytest.fixture
def caller(db: Driver, address: str) -> Iterator[Callable[..., Api]]:
    """Makes clients, each with a key of its own: `caller("read", queues=["a"])`."""
    with contextlib.ExitStack() as stack:

        def make(*scopes: str, **fields: Any) -> Api:
            key_id, text = new_key(db, *scopes, **fields)
            return stack.enter_context(Api(address, text, key_id))

        yield make


@pytest.fixture
def api(caller: Callable[..., Api]) -> Api:
    """A client that may do everything."""
    return caller("admin")


@pytest.fixture
def stranger(address: str) -> Iterator[Api]:
    """A client without a key."""
    with Api(address) as client:
        yield client


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """A refusal as it must be: problem+json, with this status and code, and no trace of our insides."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    members: dict[str, Any] = answer.json()
    assert (members["status"], members["code"]) == (status, code), members
    assert members["title"]
    assert members["detail"]
    assert members["next_step"]
    assert "Traceback" not in answer.text
    assert "psycopg" not in answer.text
    return members
