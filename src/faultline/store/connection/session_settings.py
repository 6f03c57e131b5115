"""The settings of our sessions, and how a session is reset after user code has used it, in one round trip.

Behind a transaction-mode pooler others use the session too: there we set nothing. Statements are prepared only in a session
of our own, and nothing depends on it.

A reset assumes that everything was changed. The session's state: role, settings, prepared statements, cursors, temporary
tables, advisory locks, channels. The state of psycopg's object: factories, adapters, handlers, transaction defaults. The
session gets a new object.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import pq

from faultline.core.forks import keep_from_forks
from faultline.store.connection.deadline import BoundedConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])

#: Short, because a caller waits. A session that does not answer in time is closed.
CLEAN_SECONDS = 5.0
#: The parts of `discard all`, which refuses to run together with other statements. Plans stay: they do not change results,
#: and planning the verbs again would cost more than all the rest.
_CLEAN = (
    "reset session authorization; reset role; reset all; close all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard temp; discard sequences"
)
#: Prepare a statement after so many runs in a session: a program that sends one and ends would gain nothing.
_PREPARED_AFTER = 3
#: How long a statement in a worker's sessions waits for a lock.
LOCK_SECONDS = 10.0
#: How long a worker's transaction may be idle.
IDLE_SECONDS = 60.0
#: Whatever the server, the database, the login or the environment set.
_CLIENT = {
    # At a higher level the verbs would not see what was committed while they waited for a lock.
    "default_transaction_isolation": "read committed",
    # psycopg reads no other style.
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    # Definitions are compared as the server prints them.
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    # Compiling one of our statements takes up to a thousand times as long as running it.
    "jit": "off",
    # An idle session in a pool will be used again.
    "idle_session_timeout": "0",
    # It would end the session in the midst of what we do. So only a task's own limit ends a transaction of its job.
    "transaction_timeout": "0",
}
#: Servers before 17 have no `transaction_timeout`.
_IS_KNOWN = "current_setting(s.name, true) is not null"
_WORKER = {
    **_CLIENT,
    "lock_timeout": f"{LOCK_SECONDS:g}s",
    # A frozen or killed worker must not keep locks: the server ends its transactions.
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS:g}s",
    "client_connection_check_interval": "2s",
}


def about_session(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], *, for_worker: bool, **more: str
) -> bytes:
    """SQL that returns the process id of the server, and sets the session unless a pooler answers, in one round trip."""
    chosen = {**(_WORKER if for_worker else _CLIENT), **more}
    condition = f"{_IS_KNOWN} and pg_backend_pid() = {connection.info.backend_pid}"
    return f"select pg_backend_pid(), ({_setting(chosen, condition)})".encode()


def _setting(chosen: dict[str, str], condition: str) -> str:
    values = ", ".join(f"('{name}', '{value}')" for name, value in chosen.items())
    return f"select count(set_config(s.name, s.value, false)) from (values {values}) s (name, value) where {condition}"


def is_direct(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: tuple[Any, ...] | None) -> bool:
    """Whether we talk to the server directly. A pooler introduces itself with another process id than the server's."""
    return answer is not None and answer[0] == connection.info.backend_pid


def taken_over(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: tuple[Any, ...] | None) -> bool:
    """Prepare statements if the session is ours alone. Returns whether it is."""
    direct = is_direct(connection, row)
    if direct:
        connection.prepare_threshold = _PREPARED_AFTER
    return direct


def set_again(*, direct: bool, for_worker: bool) -> tuple[str | None, int | None]:
    """The settings of a session after a loan, and after how many runs it prepares a statement."""
    if not direct:
        return None, None
    chosen = _WORKER if for_worker else _CLIENT
    return _setting(chosen, _IS_KNOWN), _PREPARED_AFTER


@contextlib.contextmanager
def nothing_prepared(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """Prepare none of the user's statements: a prepared one fails when its table has changed."""
    ours, connection.prepare_threshold = connection.prepare_threshold, None
    try:
        yield
    finally:
        connection.prepare_threshold = ours


def cleaning(settings: str) -> bytes:
    return f"{_CLEAN}; {settings}".encode()


def renewed(connection: C) -> C:
    """A new object for the same session. A class that records what is sent brings its own `renewed`."""
    usual: Any = BoundedConnection if isinstance(connection, psycopg.Connection) else psycopg.AsyncConnection
    fresh: C = getattr(connection, "renewed", usual)(_taken_from(connection))
    return keep_from_forks(fresh)


def _taken_from(connection: Any) -> Any:
    """The session of this object, which looks closed from now on to code that has kept it."""
    wire, connection.pgconn = connection.pgconn, _closed_wire()
    return wire


@cache
def _closed_wire() -> Any:
    wire = pq.PGconn.connect_start(b"host=/ port=1")
    wire.finish()
    return wire
