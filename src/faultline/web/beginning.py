"""What is asked of the database before anybody is answered. Each question has a deadline, and no answer ends the server.

A server that does not listen is started again and again, and cannot say what is wrong. So whatever the database says
(a missing grant, another schema) or does not say (a locked table, a frozen server), the caller gets `DatabaseUnavailable`,
goes on with what is safe, and the server tells of it at /ready until it is right.
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
    """From code that is not async, also where an event loop runs beside it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, question).result()


async def answer(question: Coroutine[object, object, T], *, seconds: float = _SECONDS) -> T:
    """What the database answers. Raises `DatabaseUnavailable` where it does not; a DSN that makes no sense is a mistake."""
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
