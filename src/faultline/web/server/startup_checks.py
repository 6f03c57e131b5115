"""What the server asks the database before it listens. Each question has a deadline, and no answer ends the server.

A server that does not listen is restarted again and again, and cannot report what is wrong. So if the database refuses (a
missing grant, another schema) or does not answer (a locked table, a frozen server), the caller gets `DatabaseUnavailable`
and goes on with what is safe, and /ready reports it until it is repaired.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from faultline.core.errors import ConfigError, DatabaseUnavailable, FaultlineError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
_SECONDS = 5.0


def run_apart(question: Coroutine[Any, Any, T]) -> T:
    """Call from blocking code, even if an event loop is running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, question).result()


async def answer(question: Coroutine[object, object, T], *, seconds: float = _SECONDS) -> T:
    """The database's answer. Raises `DatabaseUnavailable` if there is none, and `ConfigError` for an invalid DSN."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await question
    except (ConfigError, DatabaseUnavailable):
        raise
    except (FaultlineError, psycopg.Error) as error:
        raise DatabaseUnavailable(str(error)) from error
    except TimeoutError as error:
        if not scope.expired():
            raise
        message = (
            f"no answer within {seconds:g} s; run faultline doctor to see who holds a lock, or whether the server is frozen"
        )
        raise DatabaseUnavailable(message) from error
