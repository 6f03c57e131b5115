"""What our sessions are set to. A session behind a transaction-mode pooler is not ours alone, and stays as it is.

Statements are prepared only in a session that is ours alone, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

#: A statement that a session has seen so often is prepared there: a program that sends one and ends gains nothing by it.
_PREPARED_AFTER = 3
#: How long a statement in a worker's sessions waits for a lock.
LOCK_SECONDS = 10.0
#: Whatever the server, the database, the login or the environment say of these.
_CLIENT = {
    # The verbs are made for it: at a higher level they would not see what was committed while they waited.
    "default_transaction_isolation": "read committed",
    # psycopg reads times in no other style.
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    # Definitions are compared as the server prints them.
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    # To compile one of our statements takes up to a thousand times as long as to run it.
    "jit": "off",
    # A session that waits in a pool is one that somebody is going to use.
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
    """Ask who answers, and set the session if that is the server itself, all in one round trip."""
    chosen = {**(_WORKER if for_worker else _CLIENT), **more}
    values = ", ".join(f"('{name}', '{value}')" for name, value in chosen.items())
    return (
        "select pg_backend_pid(), (select count(set_config(s.name, s.value, false))"
        f" from (values {values}) s (name, value) where pg_backend_pid() = {connection.info.backend_pid})"
    ).encode()


def is_direct(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: tuple[Any, ...] | None) -> bool:
    """Whether we talk to the server itself. A pooler introduces itself with a process id that is none of the server's."""
    return answer is not None and answer[0] == connection.info.backend_pid


def taken_over(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], row: tuple[Any, ...] | None) -> bool:
    """Make use of a session that is ours alone. Returns whether it is."""
    direct = is_direct(connection, row)
    if direct:
        connection.prepare_threshold = _PREPARED_AFTER
    return direct


def set_again(*, direct: bool, for_worker: bool) -> tuple[str | None, int | None]:
    """What a session is set to when it comes back from others, and after how many times it prepares a statement."""
    if not direct:
        return None, None
    chosen = _WORKER if for_worker else _CLIENT
    return "; ".join(f"set {name} = '{value}'" for name, value in chosen.items()), _PREPARED_AFTER


@contextlib.contextmanager
def nothing_prepared(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """What others send is theirs: a plan that was kept fails when the table it reads has changed."""
    ours, connection.prepare_threshold = connection.prepare_threshold, None
    try:
        yield
    finally:
        connection.prepare_threshold = ours
