"""What differs by more than `await` between a job's async and its blocking side: waiting for a lock, calling a function.

The name of the async form begins with an `a`, as elsewhere.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

#: A thread cannot be cancelled, so one that waits checks this often whether its attempt is over.
_LOOK_SECONDS = 0.1


async def aacquired(lock: asyncio.Lock, seconds: float | None, over: Callable[[], bool]) -> bool:
    """Wait for a lock. False: it was not free in time, or the attempt is over."""
    if not lock.locked():
        return await lock.acquire()
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError:
        return False
    return not over() or _released(lock)


def acquired(lock: threading.Lock, seconds: float | None, over: Callable[[], bool]) -> bool:
    give_up = None if seconds is None else time.monotonic() + seconds
    while not lock.acquire(timeout=_LOOK_SECONDS if give_up is None else _left(give_up)):
        if over() or (give_up is not None and time.monotonic() >= give_up):
            return False
    return not over() or _released(lock)


def _left(give_up: float) -> float:
    return max(0.0, min(_LOOK_SECONDS, give_up - time.monotonic()))


def _released(lock: asyncio.Lock | threading.Lock) -> bool:
    lock.release()
    return False


async def acalled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function, blocking or async."""
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = function(*args, **kwargs)
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigError("a step of a blocking task was given an async function; make the task `async def`")
    return result
