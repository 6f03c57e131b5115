"""Values of a program in JSON types. The form is part of the protocol: other builds read it, and digests are made of it."""

from __future__ import annotations

import base64
import dataclasses
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson

from faultline.core.errors import JobRejected
from faultline.values import kinds

PLAIN = (str, int, float, bool, type(None))


def _moment(value: datetime | time) -> str:
    """As text, with its offset. Where it has none, nothing would say that it is the second of an hour that comes twice."""
    if (value.fold or value.tzinfo is not None) and value.utcoffset() is None:
        what = "is the second one of an hour that comes twice" if value.fold else "has a time zone without an offset"
        raise JobRejected(f"{value!r} {what}, which would be lost; give it an offset, as value.astimezone(UTC) has it")
    return value.isoformat()


_WRITERS: dict[type, Callable[[Any], Any]] = {
    datetime: _moment,
    date: date.isoformat,
    time: _moment,
    timedelta: timedelta.total_seconds,
    UUID: str,
    Decimal: str,
}
#: Keys of dicts that are stored as text although nothing says that they are no text.
_TEXT_KEYS = (UUID, Enum, date)


def plain(value: Any, *, brief: bool = False, annotated: bool = True) -> Any:
    """The same value in JSON types. What has none stays as it is, for the encoder to refuse.

    :param brief: Without fields that have their defaults: a field that a later build adds changes nothing.
    :param annotated: Something says what it is read as. If not, bytes, sets and numbers as keys are left for the encoder to
        refuse: they would come back as text and lists.
    """
    return value if type(value) in PLAIN else _written(value, brief, annotated)


def _written(value: Any, brief: bool, annotated: bool) -> Any:  # noqa: FBT001, PLR0911 - one line for each kind
    if type(value) in PLAIN:
        return value
    own = kinds.stored(value)
    if own is not NotImplemented:
        return _written(own, brief, annotated)
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    match value:
        case Enum():
            return _written(value.value, False, annotated)
        case dict():
            return {key_text(key, annotated): _written(item, brief, annotated) for key, item in value.items()}
        case list() | tuple() | deque():
            return [_written(item, brief, annotated) for item in value]
        case bytes() if annotated:
            return base64.b64encode(value).decode()
        case AbstractSet() if annotated:
            return _in_order([_written(item, brief, annotated) for item in value])
    write = next((_WRITERS[one] for one in type(value).__mro__ if one in _WRITERS), None)
    return _object(value, brief, annotated) if write is None else write(value)


def _object(value: Any, brief: bool, annotated: bool) -> Any:  # noqa: FBT001 - likewise
    """Dataclasses and models by their fields; what is none of them stays as it is."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        if brief:
            fields = dataclasses.fields(kind)
            names = tuple(one.name for one in fields if not _is_default(one, getattr(value, one.name)))
        else:
            names = _names(kind)
        return {name: _written(getattr(value, name), brief, annotated) for name in names}
    if hasattr(kind, "__struct_fields__"):
        import msgspec  # noqa: PLC0415 - it made the class, so it is there

        return msgspec.to_builtins(value, str_keys=True, order="deterministic")
    dump = getattr(kind, "model_dump", None)
    return value.model_dump(mode="json", exclude_defaults=brief) if callable(dump) else value


def key_text(key: Any, annotated: bool = True) -> Any:  # noqa: FBT001, FBT002 - as above
    """The key of a dict as text: JSON has no other keys."""
    found = key if type(key) in PLAIN else _written(key, False, annotated)
    if isinstance(found, str) or (not annotated and not isinstance(key, _TEXT_KEYS)):
        return found
    if type(found) is int:
        return str(found)  # of any size
    if isinstance(found, list | dict):
        raise TypeError(f"a dict has the key {key!r:.60}, which cannot be text; store a list of pairs")
    return orjson.dumps(found).decode() if type(found) in PLAIN else found


def _in_order(items: list[Any]) -> list[Any]:
    """A set has no order, and texts have another one in each process: the same set must have the same digest."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=lambda item: orjson.dumps(item, default=repr, option=orjson.OPT_SORT_KEYS))


@lru_cache(maxsize=1024)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(kind))


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(field.default == value)
    return field.default_factory is not dataclasses.MISSING and bool(field.default_factory() == value)
