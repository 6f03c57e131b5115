"""A call ends at its deadline, whatever the server does or does not do. Both kinds of clients, wherever it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import Faultline
from faultline.core import errors
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.core.settings import choose_timeout
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.connection import connecting
from faultline.store.connection.deadline import Deadline
from faultline.store.database import Database
from faultline.store.reads import views
from faultline.store.statement import Rows, Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Far above the deadlines here, and far below what an operating system waits for.
PATIENCE_SECONDS = 15.0


def call(kind: str, dsn: str, *calls: list[Any], holding: bool = False, **words: Any) -> Any:
    """Calls of a client of this kind, one after the other; `holding`: while somebody has borrowed a connection."""
    if kind == "blocking":
        with contextlib.ExitStack() as stack:
            blocking = stack.enter_context(contextlib.closing(Database(dsn, **words)))
            if holding:
                hold_in_a_thread(blocking, stack)
            return [blocking.run_all(statements) for statements in calls]

    async def ask() -> Any:
        async with contextlib.AsyncExitStack() as stack:
            database = AsyncDatabase(dsn, **words)
            stack.push_async_callback(database.close)
            if holding:
                await hold_in_a_task(database, stack)
            return [await database.run_all(statements) for statements in calls]

    return asyncio.run(ask())


def hold_in_a_thread(database: Database, stack: contextlib.ExitStack) -> None:
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with database.connection():
            held.set()
            enough.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=hold)
    stack.callback(thread.join)
    stack.callback(enough.set)
    thread.start()
    assert held.wait(PATIENCE_SECONDS)


async def hold_in_a_task(database: AsyncDatabase, stack: contextlib.AsyncExitStack) -> None:
    held, enough = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with database.connection():
            held.set()
            await enough.wait()

    task = asyncio.create_task(hold())
    stack.push_async_callback(asyncio.wait, [task])
    stack.callback(enough.set)
    await held.wait()


kinds = pytest.mark.parametrize("kind", ["blocking", "async"])


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections, like a server that is frozen, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as entrance:
        yield entrance


@contextlib.contextmanager
def taking_less_than(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def sleeping(seconds: float, name: str = "slow") -> Statement[None]:
    return Statement(name, "select pg_sleep(%s)", (seconds,), lambda _: None)


@kinds
def test_a_call_to_a_frozen_server_ends_at_its_deadline(dsn: str, kind: str) -> None:
    stopped: list[int] = []

    def stop(rows: Rows) -> None:
        stopped.append(rows[0][0])
        os.kill(rows[0][0], signal.SIGSTOP)

    freeze = Statement("freeze", "select pg_backend_pid()", (), stop)
    enqueue = verbs.enqueue_many([Submission("t", id=Ids().new())])

    try:
        with taking_less_than(PATIENCE_SECONDS), pytest.raises(errors.OutcomeUnknown, match="no answer within 3 s while"):
            call(kind, dsn, [freeze], [enqueue], connections_max=1, timeout=3.0)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


@kinds
def test_a_server_that_takes_connections_and_says_nothing_is_given_up_at_the_deadline(
    silent: socket.socket, kind: str
) -> None:
    dsn = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db?sslmode=disable"

    with taking_less_than(8.0), pytest.raises(errors.DatabaseUnavailable, match=r"within 0\.5 s"):
        call(kind, dsn, [views.job(uuid4())], timeout=0.5)


@kinds
def test_the_next_host_of_a_dsn_is_tried_within_the_deadline(silent: socket.socket, dsn: str, kind: str) -> None:
    good = conninfo_to_dict(dsn)
    hosts = make_conninfo(
        dsn, host=f"127.0.0.1,{good['host']}", port=f"{silent.getsockname()[1]},{good['port']}", sslmode="disable"
    )

    with taking_less_than(8.0):
        found = call(kind, hosts, [views.job(uuid4())], timeout=8.0, connections_max=1)

    assert found == [[None]]


@kinds
def test_the_dsns_own_connect_timeout_is_respected(silent: socket.socket, kind: str) -> None:
    dsn = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db?sslmode=disable&connect_timeout=2"

    with taking_less_than(9.0), pytest.raises(errors.DatabaseUnavailable):
        call(kind, dsn, [views.job(uuid4())])


@kinds
def test_waiting_for_a_free_connection_counts(dsn: str, kind: str) -> None:
    with (
        taking_less_than(PATIENCE_SECONDS),
        pytest.raises(errors.DatabaseUnavailable, match="nothing was sent: all 1 connections"),
    ):
        call(kind, dsn, [views.job(uuid4())], holding=True, connections_max=1, timeout=2.0)


@kinds
def test_every_answer_starts_the_time_anew(dsn: str, kind: str) -> None:
    """A submission of a million jobs takes minutes, and none of its statements does."""
    with taking_less_than(PATIENCE_SECONDS):
        call(kind, dsn, [sleeping(1.5), sleeping(1.5), sleeping(1.5)], timeout=4.0)


@kinds
def test_a_commit_without_an_answer_ends_at_the_deadline_too(dsn: str, kind: str) -> None:
    with Database(dsn).connect() as setup:
        setup.execute("create table slow (n int)")
        setup.execute(
            "create function slowly() returns trigger language plpgsql as"
            " $$ begin perform pg_sleep(600); return null; end $$"
        )
        setup.execute(
            "create constraint trigger slowly after insert on slow deferrable initially deferred"
            " for each row execute function slowly()"
        )
    insert: Statement[None] = Statement("insert", "insert into slow values (1) returning n", (), lambda _: None)

    with taking_less_than(PATIENCE_SECONDS), pytest.raises(errors.OutcomeUnknown, match="no answer within 3 s while insert"):
        call(kind, dsn, [insert, insert], timeout=3.0)


# What is connected with


@pytest.mark.parametrize(
    ("words", "seconds", "expected"),
    [
        ("", None, 10),
        ("connect_timeout=3", None, 3),
        ("connect_timeout=3", 30.0, 3),
        ("connect_timeout=60", 30.0, 30),
        ("connect_timeout=0", 30.0, 30),
        ("connect_timeout=0", None, 0),
        ("", 6.0, 6),
        ("", 0.5, 2),
        ("host=a,b,c", 12.0, 4),
        ("host=a,b,c connect_timeout=3", 12.0, 3),
    ],
)
def test_each_host_gets_its_share_of_the_time(words: str, seconds: float | None, expected: int) -> None:
    assert connecting.options(words, Deadline(seconds, lambda: 0.0))["connect_timeout"] == expected


def test_libpqs_variable_for_the_connect_timeout_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "4")

    assert connecting.options("", Deadline())["connect_timeout"] == 4


def test_the_dsns_own_options_win() -> None:
    options = connecting.options("keepalives_idle=99 tcp_user_timeout=1234", Deadline())

    assert "keepalives_idle" not in options
    assert "tcp_user_timeout" not in options
    assert options["keepalives_count"] == 3


# Whose choice it is


def test_a_programs_timeout_is_its_own_then_the_environments_then_30_seconds() -> None:
    assert choose_timeout(2, {"FAULTLINE_TIMEOUT": "7"}) == 2
    assert choose_timeout(None, {"FAULTLINE_TIMEOUT": "7"}) == 7
    assert choose_timeout(None, {}) == 30
    assert choose_timeout(math.inf, {}) is None
    assert choose_timeout(None, {"FAULTLINE_TIMEOUT": "inf"}) is None


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan"])
def test_a_timeout_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(errors.ConfigError, match="greater than 0"):
        choose_timeout(None, {"FAULTLINE_TIMEOUT": wrong})


@kinds
def test_an_applications_timeout_holds_for_its_calls(silent: socket.socket, kind: str) -> None:
    app = Faultline(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db?sslmode=disable", timeout=0.5)

    @app.task
    async def noop() -> None: ...

    with taking_less_than(8.0), pytest.raises(errors.DatabaseUnavailable, match=r"within 0\.5 s"):
        if kind == "async":
            asyncio.run(noop.aenqueue())
        else:
            noop.enqueue()
