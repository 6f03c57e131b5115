"""What the HTTP service costs: submissions at a steady rate, lists and pages with a large ledger, live streams.

A real `faultline serve` in a process of its own, on a scratch database; client, server and PostgreSQL share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

from faultline.bench.processes import wait_for
from faultline.bench.protocol import Figure
from faultline.bench.system import cpu_seconds
from faultline.store import scratch
from faultline.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RATE, CONNECTIONS, STREAMS = 500, 32, 50
_WARM_UP_SHARE = 0.15
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
    """`seconds` are those of the submissions; the streams are watched for half as long."""
    figures: list[Figure] = []
    with scratch.database(dsn) as scratch_dsn, _serving(scratch_dsn) as (port, pid):
        tell(f"measuring: {RATE} submissions a second over HTTP")
        figures += asyncio.run(_submissions(port, seconds))
        tell(f"measuring: {STREAMS} live streams")
        figures += asyncio.run(_streams(port, pid, seconds / 2))
        tell(f"measuring: lists and pages with {ledger:,} jobs in the ledger")
        with Database(scratch_dsn).connect() as connection:
            connection.execute((_FILL % ledger).encode())
            connection.execute("vacuum analyze faultline.ledger")
        figures += [_page(port, name, path) for name, path in _PAGES.items()]
    return figures


@contextlib.contextmanager
def _serving(dsn: str) -> Iterator[tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "faultline", "serve", "--quiet", "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "FAULTLINE_DSN": dsn}, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: _answers(port))
        yield port, server.pid
    finally:
        server.terminate()
        server.wait(30)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


async def _submissions(port: int, seconds: float) -> list[Figure]:
    """Each is timed from when it was due, so one that has to wait for its turn counts in full."""
    todo: asyncio.Queue[float] = asyncio.Queue()
    took: list[tuple[float, float]] = []
    clients = [asyncio.create_task(_client(port, todo, took)) for _ in range(CONNECTIONS)]
    begun = time.perf_counter()
    for number in range(int(RATE * seconds)):
        due = begun + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        todo.put_nowait(due)
    await todo.join()
    rate = len(took) / (time.perf_counter() - begun)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    waits = sorted(1000 * wait for due, wait in took if due >= begun + _WARM_UP_SHARE * seconds)
    p99 = waits[int(len(waits) * 0.99)]
    return [
        Figure(f"submissions over HTTP, {RATE}/s asked for", rate, "jobs/s", f"at least {RATE}", rate >= 0.99 * RATE),
        Figure("the same, p50", statistics.median(waits), "ms"),
        Figure("the same, p99", p99, "ms", "under 50", p99 < 50),
    ]


async def _client(port: int, todo: asyncio.Queue[float], took: list[tuple[float, float]]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(_BODY)}"
    try:
        while True:
            due = await todo.get()
            writer.write(f"{head}\r\n\r\n".encode() + _BODY)
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


async def _streams(port: int, pid: int, seconds: float) -> list[Figure]:
    wires = [await asyncio.open_connection("127.0.0.1", port) for _ in range(STREAMS)]
    for _, writer in wires:
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for reader, _ in wires:
        await reader.readuntil(b"\r\n\r\n")
    readers = [asyncio.create_task(reader.read(-1)) for reader, _ in wires]
    await asyncio.sleep(seconds / 4)
    cpu, begun = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    share = 100 * (cpu_seconds(pid) - cpu) / (time.monotonic() - begun)
    for _, writer in wires:
        writer.close()
        await writer.wait_closed()
    await asyncio.gather(*readers, return_exceptions=True)
    return [Figure(f"{STREAMS} live streams, CPU of the server", share, "%", "under 5", share < 5)]


def _page(port: int, name: str, path: str) -> Figure:
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            answer.read()
        times.append(1000 * (time.perf_counter() - begun))
    worst, most = sorted(times)[-2], 50 if name == "/metrics" else 100
    return Figure(f"{name}, second slowest of 20", worst, "ms", f"under {most}", worst < most)
