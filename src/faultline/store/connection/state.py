"""Cut and inspect a connection from outside, without sending anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from faultline.core.faults import WireCut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import AsyncConnection, Connection

    from faultline.core.faults import Faults

_NEWS_SECONDS = 0.05


def cut(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Cut a connection from any thread: a hanging call fails, and the server rolls back."""
    with contextlib.suppress(psycopg.Error, OSError, ValueError, AttributeError):
        if not connection.closed:
            with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)


def abandon(connection: AsyncConnection[Any]) -> None:
    """Close the socket when the event loop is gone and nothing can be awaited any more."""
    closing = connection.close()
    with contextlib.suppress(StopIteration):
        closing.send(None)  # `close` does not really wait


def is_simulated(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return not hasattr(connection, "pgconn")


def is_reusable(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    return is_simulated(connection) or connection.pgconn.pipeline_status == PipelineStatus.OFF


def is_quiet(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether an idle connection has received nothing: neither its end nor a last message of the server."""
    if not is_reusable(connection):
        return False
    return is_simulated(connection) or not _is_readable(connection.fileno())


def _is_readable(wire: int) -> bool:
    """Asked without waiting. `select` cannot watch a number above 1,023, and Windows has no `poll`."""
    if not hasattr(select, "poll"):
        return bool(select.select([wire], [], [], 0)[0])
    poll = select.poll()
    poll.register(wire, select.POLLIN)
    return bool(poll.poll(0))


def little() -> None:
    """Wait until the news reaches the other connections too, when the server ends all sessions at once."""
    time.sleep(_NEWS_SECONDS)


async def alittle() -> None:
    await asyncio.sleep(_NEWS_SECONDS)


@contextlib.contextmanager
def wire(faults: Faults, name: str, connection: Connection[Any] | AsyncConnection[Any]) -> Iterator[None]:
    """The two fault points of a statement. `WireCut` closes the socket without the connection's knowledge."""
    if not faults.wanted:
        yield
        return
    try:
        faults.reach(f"before_{name}_sent")
        yield
        faults.reach(f"after_{name}_committed")
    except WireCut as broken:
        if is_simulated(connection):
            cut(connection)  # a session of the task's
        else:
            connection.pgconn.finish()
        raise psycopg.OperationalError(f"the connection was cut: {broken}") from broken
