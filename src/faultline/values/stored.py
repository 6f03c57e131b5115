"""Values as the database has them: their JSON text, their digest, and what comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import orjson

from faultline.core.errors import JobRejected
from faultline.store import jsontext
from faultline.values.annotations import is_read, returned
from faultline.values.reading import Misfit, Read, reader
from faultline.values.writing import PLAIN, key_text, plain

_DIGEST_BYTES = 16
#: JSON texts have floats from here on with an exponent.
_EXPONENT_FROM = 1e16
#: Keys of dicts that have always been stored as text without an annotation.
_TEXT_KEYS = (UUID, Enum, date)


def typed(value: Any, annotation: Any) -> Any:
    """A JSON value as its annotation says; `Misfit` if it cannot be."""
    if isinstance(value, jsontext.Unreadable):
        raise Misfit(value.why)
    return reader(annotation)(value)


def as_stored(value: Any) -> Any:
    """A JSON value as jsonb gives it back: dicts in another order, large floats as integers, no negative zero.

    What a program sees must not depend on whether its step ran in this run or in an earlier one.
    """
    if type(value) is dict:
        return {key: as_stored(value[key]) for key in sorted(value, key=_position)}
    if type(value) is list:
        return [as_stored(item) for item in value]
    return _as_stored_number(value) if type(value) is float else value


def _position(key: Any) -> tuple[int, bytes]:
    """Where jsonb puts a key: the shorter ones first."""
    text = str(key).encode("utf-8", "surrogatepass")
    return len(text), text


def _as_stored_number(value: float) -> float | int:
    if abs(value) < _EXPONENT_FROM:
        return value or 0.0
    if not math.isfinite(value):
        return value
    # Written with an exponent, which jsonb writes out. As many digits as fit into 64 bits are read as an integer.
    whole = int(Decimal(repr(value)))
    return whole if -(2**63) <= whole < 2**64 else value


def digest(*values: Any) -> str | None:
    """A digest of arguments; None if they have parts that JSON cannot hold, and cannot be compared."""
    try:
        text = orjson.dumps(as_stored(plain(list(values), brief=True)), option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError, RecursionError):
        return None
    return digest_of([text])


def digest_of(parts: Iterable[bytes]) -> str:
    running = hashlib.sha256()
    for part in parts:
        running.update(part)
        running.update(b"\n")
    return running.hexdigest()[: 2 * _DIGEST_BYTES]


#: What annotated functions return, by function: looked up each time that one runs as a step.
_read_as: WeakKeyDictionary[Any, Read | None] = WeakKeyDictionary()


def read_as(function: Any) -> Read | None:
    """What reads the results of a function by its annotation; None: they are JSON, and stay as they are."""
    function = getattr(function, "__func__", function)
    if "return" not in getattr(function, "__annotations__", ()):
        return None
    try:
        if function in _read_as:
            return _read_as[function]
    except TypeError:
        return None  # an object that cannot be hashed: not a function
    annotation = returned(function)
    _read_as[function] = found = reader(annotation) if is_read(annotation) else None
    return found


def args_text(given: Mapping[str, Any], what: str) -> str:
    """The JSON text of arguments, or `JobRejected`."""
    try:
        # Their names stay as they are: one that is not text is refused.
        as_json: Mapping[str, Any] = {name: plain(value) for name, value in given.items()}
    except RecursionError:
        as_json = given
    return jsontext.encode_args(as_json, what)


def text_of(value: Any, what: str, *, annotated: bool = True) -> str:
    """The JSON text of a value, or `JobRejected`.

    :param annotated: As for `plain`.
    """
    try:
        return jsontext.encode(value, what)
    except JobRejected:
        as_json = plain(value, annotated=annotated)
        if as_json is value:
            raise
    return jsontext.encode(as_json, what)


def is_same_kind(value: Any, read: Any, inside: tuple[type, ...] = ()) -> bool:
    """Whether what is read again is of the class that was stored, where that is not a JSON type.

    :param inside: Classes that must be the same inside of lists and dicts too, beside dataclasses and models.
    """
    if isinstance(value, (*PLAIN, dict, list, tuple)):
        return _has_same_kinds(value, read, inside)
    if isinstance(value, AbstractSet):
        return isinstance(read, AbstractSet)
    return type(read) is type(value) and _has_same_kinds(value, read, inside)


def _has_same_kinds(value: Any, read: Any, inside: tuple[type, ...]) -> bool:
    if isinstance(value, dict) and isinstance(read, dict):
        # By their keys: what is stored may come back in another order.
        return all(_has_same_item(key, item, read, inside) for key, item in value.items())
    if hasattr(value, "_fields") and isinstance(read, list):
        return False  # a NamedTuple; as a tuple it is still what it was
    if isinstance(value, list | tuple) and isinstance(read, list | tuple):
        return all(_has_same_kinds(item, other, inside) for item, other in zip(value, read, strict=False))
    if callable(getattr(type(value), "model_dump", None)):
        return type(read) is type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(read) is type(value) and all(
            _has_same_kinds(getattr(value, one.name), getattr(read, one.name), inside) for one in dataclasses.fields(value)
        )
    return not isinstance(value, inside) or type(read) is type(value)


def _has_same_item(key: Any, item: Any, read: dict[Any, Any], inside: tuple[type, ...]) -> bool:
    if key not in read:
        key = key_text(key) if isinstance(key, _TEXT_KEYS) else key
    return key in read and _has_same_kinds(item, read[key], inside)
