"""Make a connection as new after others have used it, in one round trip. Whatever could be changed is taken for changed.

In the session: role, settings, prepared statements, cursors, temporary tables, advisory locks, channels. In psycopg's
object: factories, adapters, handlers, defaults of transactions. That object is replaced by a new one for the same session.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import psycopg
from psycopg import pq

from faultline.core.forks import keep_from_forks
from faultline.store.deadline import BoundedConnection

C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])

#: Longer than it takes, and short: somebody waits for it. A session that does not answer is closed.
CLEAN_SECONDS = 5.0
#: What `discard all` does, which must not stand beside other statements. Plans are kept: they do not change what is
#: answered, and to plan the verbs anew costs more than all the rest.
_CLEAN = (
    "reset session authorization; reset role; reset all; close all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard temp; discard sequences"
)


def cleaning(settings: str) -> bytes:
    return f"{_CLEAN}; {settings}".encode()


def renewed(connection: C) -> C:
    """A new object for the same session. One that writes down what is sent says itself how that goes on."""
    usual: Any = BoundedConnection if isinstance(connection, psycopg.Connection) else psycopg.AsyncConnection
    fresh: C = getattr(connection, "renewed", usual)(_taken_from(connection))
    return keep_from_forks(fresh)


def _taken_from(connection: Any) -> Any:
    """The wire, out of the hands of whoever has kept the object: from now on it is closed for them."""
    wire, connection.pgconn = connection.pgconn, _closed_wire()
    return wire


@cache
def _closed_wire() -> Any:
    wire = pq.PGconn.connect_start(b"host=/ port=1")
    wire.finish()
    return wire
