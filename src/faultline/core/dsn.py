"""A DSN that a function gives. It is asked again for every new connection, because passwords rotate."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Self

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


class LiveDsn(str):
    """As text it is the first answer: to show it, and to compare it."""

    __slots__ = ("_ask", "latest")

    _ask: Callable[[], str]
    #: What was last answered.
    latest: str

    def __new__(cls, ask: Callable[[], str]) -> Self:
        first = _checked(ask())
        made = super().__new__(cls, first)
        made._ask, made.latest = ask, first
        return made

    def current(self) -> str:
        """Ask for it. Raises what the function raises."""
        self.latest = _checked(self._ask())
        return self.latest


def current(dsn: str) -> str:
    """The DSN to connect with now."""
    return dsn.current() if isinstance(dsn, LiveDsn) else dsn


def latest(dsn: str) -> str:
    """The DSN that was used last, without asking for it."""
    return dsn.latest if isinstance(dsn, LiveDsn) else dsn


def _checked(given: object) -> str:
    if isinstance(given, str) and given:
        return given
    if inspect.iscoroutine(given):
        given.close()
        raise ConfigError("the function that gives the DSN is async; give a plain one: it is called in a thread")
    raise ConfigError(f"the function that gives the DSN returned a {type(given).__name__}; it must return text")
