"""The settings of our sessions. Behind a transaction-mode pooler others use the session too: there we set nothing.

Statements are prepared only in a session of our own, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

#: Prepare a statement after so many runs in a session: a program that sends one and ends would gain nothing.
_PREPARED_AFTER = 3
#: How long a statement in a worker's sessions waits for a lock.
LOCK_SECONDS = 10.0
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
}
_WORKER = {
    **_CLIENT,
    "lock_timeout": f"{LOCK_SECONDS:g}s",
    # A frozen or killed worker must not keep locks: the server ends its transactions.
    "idle_in_transaction_session_timeout": "60s",
    "client_connection_check_interval": "2s",
}


def about_session(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], *, for_worker: bool, **more: str
) -> bytes:
    """SQL that returns the process id of the server, and sets the session unless a pooler answers, in one round trip."""
    chosen = {**(_WORKER if for_worker else _CLIENT), **more}
    values = ", ".join(f"('{name}', '{value}')" for name, value in chosen.items())
    return (
        "select pg_backend_pid(), (select count(set_config(s.name, s.value, false))"
        f" from (values {values}) s (name, value) where pg_backend_pid() = {connection.info.backend_pid})"
    ).encode()


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
    return "; ".join(f"set {name} = '{value}'" for name, value in chosen.items()), _PREPARED_AFTER


@contextlib.contextmanager
def nothing_prepared(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """Prepare none of the user's statements: a prepared one fails when its table has changed."""
    ours, connection.prepare_threshold = connection.prepare_threshold, None
    try:
        yield
    finally:
        connection.prepare_threshold = ours
