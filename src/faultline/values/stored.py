"""Values as the database has them: their JSON text, their digest, and what comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, timedelta
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


def digest(*values: Any, own: Iterable[bytes] = ()) -> str | None:
    """A digest of arguments, tuples of them and dicts. One that JSON cannot hold is not compared; None if that is all.

    :param own: As `digest_of` takes it.
    """
    text = _compared(list(values))
    if text is None:
        # A function of the program's own is often given the job itself, and the others tell one call from another.
        text = _compared([_each(value, own) for value in values])
        own = (*own, b'"~') if own else own
    return None if text is None else digest_of([text], own)


def _each(value: Any, own: Iterable[bytes]) -> Any:
    """Of several arguments, those that can be compared."""
    if isinstance(value, dict):
        return {str(name): digest(one, own=own) for name, one in value.items()}
    return [digest(one, own=own) for one in value] if isinstance(value, tuple) else NotImplemented


def _compared(value: Any) -> bytes | None:
    try:
        return orjson.dumps(as_stored(plain(value, brief=True)), option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError, RecursionError):
        return None


def digest_of(parts: Iterable[bytes], own: Iterable[bytes] = ()) -> str:
    """One digest of several texts.

    :param own: What names the job itself, as its id. A digest of texts that contain it begins with "~": of a fork, which is
        another job, they are different.
    """
    running, names_itself = hashlib.sha256(), ""
    for part in parts:
        running.update(part)
        running.update(b"\n")
        if not names_itself and any(one in part for one in own):
            names_itself = "~"
    return names_itself + running.hexdigest()[: 2 * _DIGEST_BYTES]


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
    # Their names stay as they are: one that is not text is refused.
    return jsontext.encode_args({name: _written(value, f"{what}: {name}") for name, value in given.items()}, what)


def text_of(value: Any, what: str, *, annotated: bool = True) -> str:
    """The JSON text of a value, or `JobRejected`.

    :param annotated: As for `plain`.
    """
    try:
        return jsontext.encode(value, what)
    except JobRejected:
        as_json = _written(value, what, annotated=annotated)
        if as_json is value:
            raise
    return jsontext.encode(as_json, what)


def _written(value: Any, what: str, *, annotated: bool = True) -> Any:
    """`plain`, or `JobRejected` for whatever a class raises when it is written."""
    try:
        return plain(value, annotated=annotated)
    except RecursionError as error:
        raise JobRejected(f"{what} is nested too deeply or contains itself") from error
    except JobRejected as error:
        raise JobRejected(f"{what}: {error}") from error
    except Exception as error:
        raise JobRejected(f"{what} cannot be stored: {type(error).__name__}: {error}") from error


def is_same_kind(value: Any, read: Any, inside: tuple[type, ...] = ()) -> bool:
    """Whether what is read again is of the class that was stored, where that is not a JSON type, and has all that it had.

    :param inside: Classes that must be the same inside of lists and dicts too, beside dataclasses and models.
    """
    if isinstance(value, (*PLAIN, dict, list, tuple)):
        return _has_same_kinds(value, read, inside)
    if isinstance(value, AbstractSet):
        return isinstance(read, AbstractSet) and _has_same_kinds(value, read, inside)
    return type(read) is type(value) and _has_same_kinds(value, read, inside)


def changed_field(value: Any, read: Any) -> str | None:
    """The field of a dataclass, model or struct that would arrive with another value; None: none, or it is none of them."""
    if type(read) is not type(value):
        return None
    kept = _model_fields(value)
    if kept is None and dataclasses.is_dataclass(value):
        # Only what its `__init__` does not take: the others were read.
        kept = [one.name for one in dataclasses.fields(value) if not one.init]
    return next((name for name in kept or () if not _is_same_value(getattr(value, name), getattr(read, name, None))), None)


def _has_same_kinds(value: Any, read: Any, inside: tuple[type, ...]) -> bool:
    if isinstance(value, dict) and isinstance(read, dict):
        # By their keys: what is stored may come back in another order. Two keys may have the same text.
        return (
            _is_same_dict(value, read)
            and len(read) == len(value)
            and all(_has_same_item(key, item, read, inside) for key, item in value.items())
        )
    if hasattr(value, "_fields") and isinstance(read, list):
        return False  # a NamedTuple; as a tuple it is still what it was
    if isinstance(value, list | tuple) and isinstance(read, list | tuple):
        return all(_has_same_kinds(item, other, inside) for item, other in zip(value, read, strict=False))
    if isinstance(value, AbstractSet) and isinstance(read, AbstractSet) and not isinstance(value, inside):
        return _are_same_members(value, read, inside)
    if _model_fields(value) is not None:
        return type(read) is type(value) and changed_field(value, read) is None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (
            type(read) is type(value)
            and changed_field(value, read) is None
            and all(
                _has_same_kinds(getattr(value, one.name), getattr(read, one.name), inside)
                for one in dataclasses.fields(value)
            )
        )
    return _is_same_leaf(value, read, inside)


def _is_same_leaf(value: Any, read: Any, inside: tuple[type, ...]) -> bool:
    if isinstance(value, timedelta) and isinstance(read, timedelta):
        return value == read  # seconds are a float, which has no microseconds after a hundred years
    if isinstance(value, AbstractSet) and isinstance(value, inside):
        return type(read) is type(value) and _are_same_members(value, read, inside)
    if isinstance(value, Enum) and isinstance(value, PLAIN):
        return bool(value == read)  # a text or a number itself
    return not isinstance(value, inside) or type(read) is type(value)


def _are_same_members(value: AbstractSet[Any], read: AbstractSet[Any], inside: tuple[type, ...]) -> bool:
    """They have no order in which to compare them one by one."""

    def kinds(items: AbstractSet[Any]) -> Counter[type]:
        watched = (one for one in items if isinstance(one, inside) or dataclasses.is_dataclass(one))
        return Counter(type(one) for one in watched if not isinstance(one, PLAIN))

    return len(read) == len(value) and kinds(read) == kinds(value)


def _is_same_dict(value: dict[Any, Any], read: dict[Any, Any]) -> bool:
    """Whether it is of the same class, where the annotation names one; for that, it must have all that is its own."""
    if dict in (type(value), type(read)):
        return True
    if type(value) is not type(read) or (isinstance(value, OrderedDict) and list(value) != list(read)):
        return False
    return getattr(value, "default_factory", None) is getattr(read, "default_factory", None)


def _has_same_item(key: Any, item: Any, read: dict[Any, Any], inside: tuple[type, ...]) -> bool:
    if key not in read and not isinstance(key, inside):
        key = key_text(key) if isinstance(key, _TEXT_KEYS) else key
    return key in read and _has_same_kinds(item, read[key], inside)


def _model_fields(value: Any) -> Iterable[str] | None:
    """The fields of a model of pydantic or a struct of msgspec; None: it is neither. Both write and read themselves."""
    kind = type(value)
    if callable(getattr(kind, "model_dump", None)):
        return [*getattr(kind, "model_fields", ())]
    found: Iterable[str] | None = getattr(kind, "__struct_fields__", None)
    return found


def _is_same_value(value: Any, read: Any) -> bool:
    """Equal, where a model counts by its fields, and a list for a tuple. What cannot be compared counts by its class."""
    fields = _model_fields(value)
    if fields is not None:
        return type(read) is type(value) and all(_is_same_value(getattr(value, one), getattr(read, one)) for one in fields)
    if isinstance(value, dict) and isinstance(read, dict):
        return value.keys() == read.keys() and all(_is_same_value(item, read[key]) for key, item in value.items())
    if isinstance(value, list | tuple) and isinstance(read, list | tuple):
        return len(value) == len(read) and all(map(_is_same_value, value, read))
    try:
        return bool(value == read) or bool(value != value) or _has_no_equal(value, read)  # noqa: PLR0124 - not a number
    except Exception:  # noqa: BLE001 - a class may refuse to be compared
        return type(read) is type(value)


def _has_no_equal(value: Any, read: Any) -> bool:
    """A class that does not say when two of it are equal."""
    return type(read) is type(value) and not any("__eq__" in vars(one) for one in type(value).__mro__[:-1])
