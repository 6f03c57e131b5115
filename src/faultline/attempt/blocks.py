"""Blocks of a job, such as `async with job.saga()`. One that is opened the other way says what to write."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


def ablock(method: Callable[P, AsyncIterator[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
    """As `asynccontextmanager`, for a method of `Job`."""
    opening = asynccontextmanager(method)

    @wraps(method)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _AsyncBlock(opening(*args, **kwargs), *_named(method, args))

    return made


def block(method: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As `contextmanager`, for a method of `BlockingJob`."""
    opening = contextmanager(method)

    @wraps(method)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Block(opening(*args, **kwargs), *_named(method, args))

    return made


def _named(method: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, str]:
    return f"job.{method.__name__}()", f"job {args[0].id}: "


def refuse_with(call: str, whose: str = "") -> NoReturn:
    """Of a block that was opened without its `async`."""
    raise ConfigError(f"{whose}{call} needs `async with` in an async task; write: async with {call}")


def refuse_async_with(call: str, whose: str = "") -> NoReturn:
    """Of a block that was opened with an `async` too many."""
    raise ConfigError(f"{whose}{call} needs `with`, without async, in a blocking task; write: with {call}")


class _AsyncBlock(AbstractAsyncContextManager[T]):
    def __init__(self, opened: AbstractAsyncContextManager[T], call: str, whose: str) -> None:
        self._opened = opened
        self._what = (call, whose)

    async def __aenter__(self) -> T:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    # Not shown to type checkers: they refuse what a block does not have.
    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            refuse_with(*self._what)

        def __exit__(self, *_: object) -> None: ...

        def __await__(self) -> NoReturn:
            refuse_with(*self._what)

        def __getattr__(self, name: str) -> NoReturn:
            _refuse_unless_private(name)
            _refuse_unopened("async with", *self._what)


class _Block(AbstractContextManager[T]):
    def __init__(self, opened: AbstractContextManager[T], call: str, whose: str) -> None:
        self._opened = opened
        self._what = (call, whose)

    def __enter__(self) -> T:
        return self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._opened.__exit__(kind, error, trace)

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            refuse_async_with(*self._what)

        async def __aexit__(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> NoReturn:
            _refuse_unless_private(name)
            _refuse_unopened("with", *self._what)


def _refuse_unopened(word: str, call: str, whose: str) -> NoReturn:
    raise ConfigError(f"{whose}{call} is opened by `{word}` before it is used; write: {word} {call} as opened")


def _refuse_unless_private(name: str) -> None:
    """What Python and its libraries look for is simply not there."""
    if name.startswith("_"):
        raise AttributeError(name)
