"""What is done to a connection from outside, by whoever does not use it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


def cut(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Cut a connection from any thread: a call that hangs on it ends with an error, and the server rolls back."""
    with contextlib.suppress(psycopg.Error, OSError, ValueError, AttributeError):
        if not connection.closed:
            with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
