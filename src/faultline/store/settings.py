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
#: What a worker's own sessions are set to. A frozen or killed worker must not keep locks: the server ends its transactions.
WORKER_SETTINGS = (
    f"set lock_timeout = '{LOCK_SECONDS:g}s'; set idle_in_transaction_session_timeout = '60s';"
    " set default_transaction_isolation = 'read committed'; set client_connection_check_interval = '2s'"
)
#: The verbs are made for it: at a higher level they would not see what was committed while they waited.
_CLIENT_SETTINGS = "set default_transaction_isolation = 'read committed'"

ABOUT_SESSION = "select pg_backend_pid(), current_setting('default_transaction_isolation')"


def is_direct(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: tuple[Any, ...] | None) -> bool:
    """Whether we talk to the server itself. A pooler introduces itself with a process id that is none of the server's."""
    return answer is not None and answer[0] == connection.info.backend_pid


def taken_over(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    row: tuple[Any, ...] | None,
    *,
    for_worker: bool,
) -> bytes | None:
    """Make use of a session that is ours alone, and tell what to set there."""
    if not is_direct(connection, row):
        return None
    connection.prepare_threshold = _PREPARED_AFTER
    if for_worker:
        return WORKER_SETTINGS.encode()
    return None if row and row[1] == "read committed" else _CLIENT_SETTINGS.encode()


def set_again(*, direct: bool, for_worker: bool) -> tuple[str | None, int | None]:
    """What a session is set to when it comes back from others, and after how many times it prepares a statement."""
    if not direct:
        return None, None
    return WORKER_SETTINGS if for_worker else _CLIENT_SETTINGS, _PREPARED_AFTER


@contextlib.contextmanager
def nothing_prepared(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """What others send is theirs: a plan that was kept fails when the table it reads has changed."""
    ours, connection.prepare_threshold = connection.prepare_threshold, None
    try:
        yield
    finally:
        connection.prepare_threshold = ours
