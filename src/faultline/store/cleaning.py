"""Make a connection as new after others have used it, in one round trip. Whatever could be changed is taken for changed.

In the session: role, settings, prepared statements, cursors, temporary tables, advisory locks, channels. In psycopg's
object: factories, adapters, handlers, defaults of transactions. That object is replaced by a new one for the same session.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg
from psycopg import pq

from faultline.store.deadline import BoundedConnection, Deadline, until

#: Longer than it takes, and short: somebody waits for it. A session that does not answer is closed.
_SECONDS = 5.0
#: What `discard all` does, which must not stand beside other statements. Plans are kept: they do not change what is
#: answered, and to plan the verbs anew costs more than all the rest.
_CLEAN = (
    "reset session authorization; reset role; reset all; close all; deallocate all; unlisten *;"
    " select pg_catalog.pg_advisory_unlock_all(); discard temp; discard sequences"
)


def clean(connection: Any, settings: str | None, prepare_threshold: int | None) -> Any:
    """Answers None if it could not be done; then it is closed. Without `settings`, the session is a pooler's and stays."""
    if not isinstance(connection, psycopg.Connection):
        return connection  # simulated: there is nothing to be changed
    fresh = _renewed(connection, BoundedConnection)
    try:
        with fresh.until(Deadline(_SECONDS)):
            fresh.autocommit = True
            fresh.prepare_threshold = prepare_threshold
            if settings is not None:
                fresh.execute(f"{_CLEAN}; {settings}".encode(), prepare=False)
    except psycopg.Error:
        fresh.close()
        return None
    except BaseException:
        fresh.close()
        raise
    return fresh


async def aclean(connection: Any, settings: str | None, prepare_threshold: int | None) -> Any:
    if not isinstance(connection, psycopg.AsyncConnection):
        return connection
    fresh = _renewed(connection, psycopg.AsyncConnection)
    try:
        async with until(fresh, Deadline(_SECONDS)):
            await fresh.set_autocommit(True)
            fresh.prepare_threshold = prepare_threshold
            if settings is not None:
                await fresh.execute(f"{_CLEAN}; {settings}".encode(), prepare=False)
    except psycopg.Error:
        await fresh.close()
        return None
    except BaseException:  # being cancelled counts
        await fresh.close()
        raise
    return fresh


def _renewed(connection: Any, usual: type[Any]) -> Any:
    """A new object for the same session. One that writes down what is sent says itself how that goes on."""
    renewed = getattr(connection, "renewed", usual)
    return renewed(_taken_from(connection))


def _taken_from(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Any:
    """The wire, out of the hands of whoever has kept the object: from now on it is closed for them."""
    wire, connection.pgconn = connection.pgconn, _closed_wire()
    return wire


@cache
def _closed_wire() -> Any:
    wire = pq.PGconn.connect_start(b"host=/ port=1")
    wire.finish()
    return wire
