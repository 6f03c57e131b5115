"""Calls that were made and never awaited. Python only warns of them, somewhere in a log; here they fail the attempt.

A job with a forgotten `await` would succeed, and its write would not exist. So a call that must be awaited is on a list from
when it is made until it is begun. A transaction does not commit, and a job does not complete, with something on that list.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Coroutine
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from faultline.core.errors import ConfigError
from faultline.core.running import running

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Coroutine[Any, Any, Any]]")

_SHOWN_MAX = 60

#: Calls that a batch made and has not awaited: they are no single job's.
of_batch: ContextVar[set[Pending[Any]] | None] = ContextVar("unawaited_of_batch", default=None)


class Pending(Coroutine[Any, Any, T]):
    """A coroutine that is on a list until it is begun: by `await`, or by the asyncio task that it was given to."""

    __slots__ = ("__weakref__", "_coroutine", "_list", "call", "what")

    def __init__(self, coroutine: Coroutine[Any, Any, T], listed: set[Pending[Any]], call: str, what: str = "") -> None:
        self._coroutine = coroutine
        self._list = listed
        #: How it was called, such as `tx.execute`, and with what.
        self.call = call
        self.what = what
        listed.add(self)

    @property
    def shown(self) -> str:
        return f"{self.call}({self.what or '…'})"

    def __await__(self) -> Generator[Any, None, T]:
        self._list.discard(self)
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        self._list.discard(self)
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._list.discard(self)
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._list.discard(self)
        self.give_up()

    def give_up(self) -> None:
        """It can no longer be awaited, and Python need not warn of it as well."""
        self._coroutine.close()

    # Not shown to type checkers: they refuse what a coroutine does not have.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith(("_", "cr_")):
                return getattr(self._coroutine, name)
            raise AttributeError(f"{self.shown} was not awaited, so it has no {name}; write: await {self.call}(…)")


def refuse_unawaited(listed: set[Pending[Any]], consequence: str) -> None:
    """Raise `ConfigError` if a call on this list was never awaited."""
    if listed:
        raise never_awaited(listed, consequence)


def never_awaited(listed: set[Pending[Any]], consequence: str) -> ConfigError:
    """What to raise for the calls on this list. They stay on it: a task that catches the error is refused again."""
    forgotten = sorted(listed, key=lambda one: one.shown)
    for one in forgotten:
        one.give_up()
    first, more = forgotten[0], f" (and {len(forgotten) - 1} more)" if len(forgotten) > 1 else ""
    return ConfigError(f"{first.shown}{more} was called and never awaited{consequence}; write: await {first.call}(…)")


def shortened(value: object) -> str:
    """Of an argument, what is enough to find the call."""
    text = " ".join(value.split()) if isinstance(value, str) else value
    shown = repr(text)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"


def must_await(function: F) -> F:
    """For an async method that programs call. Inside a job, one that is never awaited fails the attempt."""
    name = function.__name__

    @wraps(function)
    def made(self: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        coroutine = function(self, *args, **kwargs)
        job = running.get()
        if job is None:
            listed = of_batch.get()
        elif job.unawaited is None:
            listed = job.unawaited = set()
        else:
            listed = job.unawaited
        return coroutine if listed is None else Pending(coroutine, listed, f"{_called(self)}.{name}")

    return cast("F", _marked(made))


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs functions later, such as background tasks of a web framework, must see that this one is async: in a thread,
    its coroutine would be made and dropped.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    vars(function)["_is_coroutine"] = vars(asyncio.coroutines)["_is_coroutine"]
    return function


def _called(owner: Any) -> str:
    """What programs call such an object: a task by its name, a `Job` job, a `JobHandle` handle."""
    name = getattr(owner, "name", None)
    return name if isinstance(name, str) else _WORDS.get(type(owner).__name__, type(owner).__name__.lower())


_WORDS = {"Faultline": "app", "JobHandle": "handle", "JoinedApp": "app.using(…)", "JoinedTask": "task.using(…)"}
