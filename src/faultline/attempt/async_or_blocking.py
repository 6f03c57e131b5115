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
    from collections.abc import Callable, Sequence

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


async def abeside(
    runs: Sequence[Callable[[], Any]], most: int, keeps: Callable[[Any], bool], ends: Callable[[], None]
) -> list[Any]:
    """Run them beside each other to their ends, so many at once, begun in their order. If one raises, the others end.

    :param most: How many at once.
    :param keeps: Whether what ended so keeps its turn. The outcome of what gets no turn is None.
    :param ends: Called when a turn is over, or kept.
    """
    outcomes: list[Any] = [None] * len(runs)
    left = iter(enumerate(runs))

    async def take_turns() -> None:
        try:
            for index, run in left:
                outcomes[index] = await run()
                if keeps(outcomes[index]):
                    return
        finally:
            ends()

    tasks = [asyncio.ensure_future(take_turns()) for _ in range(min(most, len(runs)))]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await astopped(tasks)
    for task in tasks:
        task.result()
    return outcomes


def beside(
    runs: Sequence[Callable[[], Any]], most: int, keeps: Callable[[Any], bool], ends: Callable[[], None]
) -> list[Any]:
    outcomes: list[Any] = [None] * len(runs)
    left = iter(enumerate(runs))

    def take_turns() -> None:
        try:
            for index, run in left:
                outcomes[index] = run()
                if keeps(outcomes[index]):
                    return
        finally:
            ends()

    started = [Runner(take_turns) for _ in range(min(most, len(runs)))]
    for one in started:
        one.ended.wait()
    for one in started:
        one.outcome()
    return outcomes


def astarted(run: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run something beside this."""
    task: asyncio.Future[Any] = asyncio.ensure_future(run())
    return task


def started(run: Callable[[], Any]) -> Runner:
    return Runner(run)


async def astopped(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel those that have not ended. What any of them raised has been seen: asyncio does not log it."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.exception()


def stopped(runners: Sequence[Runner]) -> None:
    """A thread cannot be cancelled: what it returns later is dropped."""


async def ahappened(event: Any, seconds: float | None, over: Callable[[], bool]) -> bool:  # noqa: ARG001 - being cancelled says it
    """Wait for an event, so long at most. False: it did not happen."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def happened(event: Any, seconds: float | None, over: Callable[[], bool]) -> bool:
    """As `ahappened`. False also if the attempt is over."""
    give_up = None if seconds is None else time.monotonic() + seconds
    while not event.wait(_LOOK_SECONDS if give_up is None else _left(give_up)):
        if over() or (give_up is not None and time.monotonic() >= give_up):
            return bool(event.is_set())
    return True


async def agive_way() -> None:
    """Let others of this event loop run."""
    await asyncio.sleep(0)


def give_way() -> None:
    """Threads give way by themselves."""


class Runner:
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
