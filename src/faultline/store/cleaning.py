"""Reset a connection after user code has used it, in one round trip. Assume that everything was changed.

The session's state: role, settings, prepared statements, cursors, temporary tables, advisory locks, channels. The state of
psycopg's object: factories, adapters, handlers, transaction defaults. The session gets a new object.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import psycopg
from psycopg import pq

from faultline.core.forks import keep_from_forks
from faultline.store.deadline import BoundedConnection

C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])

#: Short, because a caller waits. A session that does not answer in time is closed.
CLEAN_SECONDS = 5.0
#: The parts of `discard all`, which refuses to run together with other statements. Plans stay: they do not change results,
#: and planning the verbs again would cost more than all the rest.
_CLEAN = (
    "reset session authorization; reset role; reset all; close all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard temp; discard sequences"
)


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
