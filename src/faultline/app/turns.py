"""What differs by more than `await` between a job's async and its blocking side: waiting for a lock, calling a function.

The name of the async form begins with an `a`, as elsewhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


async def atimed(seconds: float | None, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function for so long at most."""
    if seconds is None:
        return await acalled(function, args, kwargs)
    async with asyncio.timeout(seconds):
        return await acalled(function, args, kwargs)


def timed(
    seconds: float | None,  # noqa: ARG001 - a plain function cannot be stopped
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    return called(function, args, kwargs)


async def apaused(seconds: float, over: Callable[[], bool]) -> None:  # noqa: ARG001 - being cancelled says it
    """Wait so long, or until the attempt is over."""
    await asyncio.sleep(seconds)


def paused(seconds: float, over: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not over() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_SECONDS))


async def abeside(runs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all of them at once, to their ends. If one raises, the others are cancelled."""
    tasks = [asyncio.ensure_future(run()) for run in runs]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _cancelled(tasks)
    return [task.result() for task in tasks]


def beside(runs: Sequence[Callable[[], Any]]) -> list[Any]:
    started = [_Thread(run) for run in runs]
    for one in started:
        one.ended.wait()
    return [one.outcome() for one in started]


async def afirst(
    runs: Mapping[int, Callable[[], Any]],
    look: Callable[[], Any] | None,
    seconds: float,
    waits: dict[int, list[dict[str, Any]]],
) -> tuple[int, Any] | None:
    """Run all of them at once until one ends, or `look`, which is asked from time to time, finds one that has ended.

    The others are cancelled. None: all of them wait, for what is in `waits` then.
    """
    tasks = {asyncio.ensure_future(run()): index for index, run in runs.items()}
    open_ = set(tasks)
    try:
        while open_:
            ended, open_ = await asyncio.wait(
                open_, timeout=seconds if look is not None else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in sorted(ended, key=lambda one: tasks[one]):
                outcome = task.result()
                if outcome.waits is None:
                    return tasks[task], outcome
                waits[tasks[task]] = outcome.waits
            found: tuple[int, Any] | None = None if look is None or not open_ else await look()
            if found is not None:
                return found
    finally:
        await _cancelled(list(tasks))
    return None


def first(
    runs: Mapping[int, Callable[[], Any]],
    look: Callable[[], Any] | None,
    seconds: float,
    waits: dict[int, list[dict[str, Any]]],
) -> tuple[int, Any] | None:
    """As `afirst`. A thread cannot be cancelled: what it returns later is dropped."""
    open_ = {index: _Thread(run) for index, run in runs.items()}
    while open_:
        give_up = time.monotonic() + seconds
        while not any(one.ended.is_set() for one in open_.values()) and time.monotonic() < give_up:
            next(iter(open_.values())).ended.wait(_LOOK_SECONDS)
        for index in [index for index, one in open_.items() if one.ended.is_set()]:
            outcome = open_.pop(index).outcome()
            if outcome.waits is None:
                return index, outcome
            waits[index] = outcome.waits
        found: tuple[int, Any] | None = None if look is None or not open_ else look()
        if found is not None:
            return found
    return None


async def _cancelled(tasks: list[asyncio.Future[Any]]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)


class _Thread:
    """Calls a function in a thread of its own, which does not delay the exit of the process."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._value: Any = None
        self._error: BaseException | None = None
        self.ended = threading.Event()
        context = contextvars.copy_context()
        threading.Thread(target=lambda: context.run(self._call), name="faultline-branch", daemon=True).start()

    def _call(self) -> None:
        try:
            self._value = self._run()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            self._error = error
        finally:
            self.ended.set()

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value
