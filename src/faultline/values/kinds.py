"""Types that a program has registered: how their values are stored and read. They hold for the whole program."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from faultline.core.errors import ConfigError, JobRejected

if TYPE_CHECKING:
    from collections.abc import Callable

#: These are what JSON has. Others are made of them.
_OF_JSON = (str, int, float, bool, type(None), list, dict)


class Kind(NamedTuple):
    """How values of one type are stored and read."""

    store: Callable[[Any], Any]
    read: Callable[[Any], Any]


_registered: dict[type, Kind] = {}


def register(kind: type, store: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    """Register a type; `ConfigError` if it is registered already, with other functions."""
    if not isinstance(kind, type):
        raise ConfigError(f"app.type needs a class, not {kind!r:.80}")
    if kind in _OF_JSON or kind is object:
        raise ConfigError(f"{kind.__name__} is stored as it is; make a class of your own, and register that")
    if issubclass(kind, Enum | UUID):
        raise ConfigError(f"{kind.__name__} is stored by its value, as text or a number; that cannot be changed")
    for name, function in (("store", store), ("read", read)):
        if not callable(function):
            raise ConfigError(f"type {kind.__name__}: {name} must be a function of one value, not {function!r:.80}")
    known = _registered.setdefault(kind, Kind(store, read))
    if known != (store, read):
        raise ConfigError(f"type {kind.__name__} is registered already, with other functions; register it once, where it is")


def of(kind: type) -> Kind | None:
    """How values of a class are read; None: it is not registered."""
    return _registered.get(kind)


def stored(value: Any) -> Any:
    """A value of a registered class, or of one that inherits from it, as it is stored; else `NotImplemented`."""
    if not _registered:
        return NotImplemented
    kind = next((_registered[one] for one in type(value).__mro__ if one in _registered), None)
    if kind is None:
        return NotImplemented
    try:
        return kind.store(value)
    except JobRejected:
        raise
    except Exception as error:
        raise JobRejected(f"{value!r:.80} cannot be stored: {type(error).__name__}: {error}") from error
