"""What the HTTP service costs: submissions at a steady rate, lists and pages with a large ledger, live streams.

A real `faultline serve` in a process of its own, on a scratch database, asked with an API key as in production; client,
server and PostgreSQL share the machine. What comes first after a start is told apart from the rest, and not left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING

from faultline.store import scratch
from faultline.store.database import Database
from faultline.store.verbs import access
from faultline_proof.bench.processes import wait_for
from faultline_proof.bench.protocol import Figure
from faultline_proof.bench.system import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RATE, CONNECTIONS, STREAMS = 500, 32, 50
#: The first requests after a start are told by themselves.
_FIRST_SECONDS = 1.0
_BODY = json.dumps({"task": "mail", "queue": "mail", "args": {"to": "ada@example.org", "n": 1}}).encode()
_PAGES = {"the list of jobs": "/api/v1/jobs", "the page of jobs": "/jobs", "the overview": "/", "/metrics": "/metrics"}

_FILL = """
set session_replication_role = replica;
insert into faultline.ledger (
  job_id, fencing_token, created_at, claimed_at, finished_at, priority, attempt, max_attempts,
  owner, queue, task, args, result
)
select
  faultline.new_id(n), 1, now(), now(), now(), 0, 1, 5,
  'w/1', 'mail', 'mail', '{"to": "ada@example.org"}', '{"sent": true}'
from generate_series(1, %s) as n;
set session_replication_role = default;
"""


def measure(
    dsn: str, *, ledger: int = 1_000_000, seconds: float = 15.0, tell: Callable[[str], None] = print
) -> list[Figure]:
    """`seconds` are those of the submissions, with and without keys; the streams are watched for half as long."""
    figures: list[Figure] = []
    with scratch.database(dsn) as scratch_dsn, _serving(scratch_dsn, _new_key(scratch_dsn)) as target:
        figures += [_page(target, name, path, first=True) for name, path in _PAGES.items()]
        tell(f"measuring: {RATE} submissions a second over HTTP")
        figures += asyncio.run(_submissions(target, seconds, "submissions over HTTP"))
        tell("measuring: the same with an Idempotency-Key each")
        figures += asyncio.run(_submissions(target, seconds, "submissions with a key of their own", keyed=True))
        tell(f"measuring: {STREAMS} live streams")
        figures += asyncio.run(_streams(target, seconds / 2))
        tell(f"measuring: lists and pages with {ledger:,} jobs in the ledger")
        with Database(scratch_dsn).connect() as connection:
            connection.execute((_FILL % ledger).encode())
            connection.execute("vacuum analyze faultline.ledger")
        figures += [_page(target, name, path) for name, path in _PAGES.items()]
    return figures


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    pid: int
    key: str

    def head(self, method: str, path: str, **headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _new_key(dsn: str) -> str:
    key_id, text = access.new_key(random.SystemRandom())
    database = Database(dsn)
    try:
        database.run(access.add(key_id, access.digest_of(text) or b"", name="bench", scopes=["admin"]))
    finally:
        database.close()
    return text


@contextlib.contextmanager
def _serving(dsn: str, key: str) -> Iterator[Target]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "faultline", "serve", "--quiet", "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "FAULTLINE_DSN": dsn}, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: _ready(port))
        yield Target(port, server.pid, key)
    finally:
        server.terminate()
        server.wait(30)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
            return True
    except OSError:
        return False


async def _submissions(target: Target, seconds: float, name: str, *, keyed: bool = False) -> list[Figure]:
    """Each is timed from when it was due, so one that has to wait for its turn counts in full."""
    todo: asyncio.Queue[float] = asyncio.Queue()
    took: list[tuple[float, float]] = []
    clients = [asyncio.create_task(_client(target, todo, took, keyed=keyed)) for _ in range(CONNECTIONS)]
    cpu, begun = cpu_seconds(target.pid), time.perf_counter()
    for number in range(int(RATE * seconds)):
        due = begun + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        todo.put_nowait(due)
    await _all_done(todo, clients)
    rate = len(took) / (time.perf_counter() - begun)
    cost = 1000 * (cpu_seconds(target.pid) - cpu) / len(took)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    first = [1000 * wait for due, wait in took if due < begun + _FIRST_SECONDS]
    waits = sorted(1000 * wait for due, wait in took if due >= begun + _FIRST_SECONDS) or sorted(first)
    p99 = waits[int(len(waits) * 0.99)]
    return [
        Figure(f"{name}, {RATE}/s asked for", rate, "jobs/s", f"at least {RATE}", rate >= 0.99 * RATE),
        Figure(f"{name}, p50", statistics.median(waits), "ms"),
        Figure(f"{name}, p99", p99, "ms", "under 50", p99 < 50),
        Figure(f"{name}, slowest of the first second", max(first), "ms"),
        Figure(f"{name}, CPU of the server for each", cost, "ms"),
    ]


async def _all_done(todo: asyncio.Queue[float], clients: list[asyncio.Task[None]]) -> None:
    """Raises what ends a client: what it has taken would never be done."""
    done = asyncio.create_task(todo.join())
    try:
        await asyncio.wait([done, *clients], return_when=asyncio.FIRST_COMPLETED)
        for client in clients:
            if client.done():
                client.result()
    finally:
        done.cancel()


async def _client(
    target: Target, todo: asyncio.Queue[float], took: list[tuple[float, float]], *, keyed: bool = False
) -> None:
    """A server may close a connection that was idle for some seconds: then it is opened again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    about = {"Content_Type": "application/json", "Content_Length": str(len(_BODY))}
    head = target.head("POST", "/api/v1/jobs", **about)
    try:
        while True:
            due = await todo.get()
            if keyed:
                head = target.head("POST", "/api/v1/jobs", **about, Idempotency_Key=secrets.token_hex(16))
            if reader.at_eof():
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(head + _BODY)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not answer.startswith(b"http/1.1 201"):
                raise RuntimeError(f"a submission was refused: {answer[:100]!r}")
            length = answer.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            took.append((due, time.perf_counter() - due))
            todo.task_done()
    finally:
        writer.close()
        await writer.wait_closed()


async def _streams(target: Target, seconds: float) -> list[Figure]:
    wires = [await asyncio.open_connection("127.0.0.1", target.port) for _ in range(STREAMS)]
    for _, writer in wires:
        writer.write(target.head("GET", "/api/v1/events"))
    for reader, _ in wires:
        await reader.readuntil(b"\r\n\r\n")
    readers = [asyncio.create_task(reader.read(-1)) for reader, _ in wires]
    await asyncio.sleep(seconds / 4)
    cpu, begun = cpu_seconds(target.pid), time.monotonic()
    await asyncio.sleep(seconds)
    share = 100 * (cpu_seconds(target.pid) - cpu) / (time.monotonic() - begun)
    for _, writer in wires:
        writer.close()
        await writer.wait_closed()
    await asyncio.gather(*readers, return_exceptions=True)
    return [Figure(f"{STREAMS} live streams while nothing happens, CPU of the server", share, "%", "under 5", share < 5)]


def _page(target: Target, name: str, path: str, *, first: bool = False) -> Figure:
    """Asked for 20 times on connections of their own. With `first`, once, and before anything else was asked for."""
    times = []
    for _ in range(1 if first else 20):
        begun = time.perf_counter()
        with contextlib.closing(HTTPConnection("127.0.0.1", target.port, timeout=60)) as wire:
            wire.request("GET", path, headers={"Authorization": f"Bearer {target.key}"})
            answer = wire.getresponse()
            answer.read()
        times.append(1000 * (time.perf_counter() - begun))
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"{path} was answered with {answer.status}")
    if first:
        return Figure(f"{name}, the first after a start", times[0], "ms")
    worst, most = sorted(times)[-2], 50 if name == "/metrics" else 100
    return Figure(f"{name}, second slowest of 20", worst, "ms", f"under {most}", worst < most)
