"""Encode and decode JSON. Values that PostgreSQL could not store or would change are refused, with the reason.

Arguments are stored as text, so their integers may have any size. Results, steps and progress are jsonb, which writes 1e20
as an integer. There, an integer of more than 64 bits could be a float, and is refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from faultline.core.errors import JobRejected, UnreadableJson

if TYPE_CHECKING:
    from collections.abc import Iterable

# Refuse what would be read as another type: a datetime as text, a dataclass as a dict. (A UUID is read as text and an Enum
# as its value: orjson cannot refuse them.)
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
# An integer that orjson would read as a float has at least this many digits in a row.
_LONG = 19
# orjson reads values that are nested deeper, and cannot write them.
_DEPTH_MAX = 254
_LONG_NUMBER = b"0" * _LONG
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """JSON that the database holds and Python cannot read. Whoever uses it gets an error that says why."""

    why: str


def decode_or_say(text: str) -> Any:
    """Read JSON text of any producer; what cannot be read, or not be written again, is `Unreadable`."""
    try:
        value = decode(text)
    except UnreadableJson as error:
        return Unreadable(str(error))
    if text.count("[") + text.count("{") > _DEPTH_MAX:
        try:
            orjson.dumps(value)
        except TypeError as error:
            return Unreadable(f"it is nested deeper than {_DEPTH_MAX} levels: {error}")
    return value


def decode(text: str) -> Any:
    """Read JSON text, or raise `UnreadableJson`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnreadableJson(f"invalid JSON: {error}") from error


def decode_args(text: str) -> Any:
    """Read the text of arguments, or raise `UnreadableJson`."""
    if len(text) < _LONG or _LONG_NUMBER not in text.encode().translate(_DIGITS_AS_ZEROS):
        return decode(text)
    try:
        value = json.loads(text)
        # Python's json accepts texts that orjson refuses.
        fault = _fault_with_path(_with_long_integers(value))
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(f"invalid JSON: {error}") from error
    if fault:
        raise UnreadableJson(f"invalid JSON: {fault}")
    return value


def encode_args(value: object, what: str) -> str:
    """Return the JSON text of arguments, whose integers may have any size. Raises as `encode` does."""
    try:
        return encode(value, what)
    except JobRejected as refused:
        try:
            written = _with_long_integers(value)
        except (ValueError, RecursionError):
            raise refused from None
    return encode(written, what)


def encode_each(name: str, values: Iterable[object], what: str) -> list[str]:
    """The texts of many arguments that have one value of this name each, as `encode_args` writes them one by one."""
    values = list(values)
    try:
        texts = [orjson.dumps({name: value}, option=_STRICT).decode() for value in values]
    except TypeError:
        texts = []
    # As in `encode`: what orjson cannot write, or writes as something else, is looked at closely.
    together = "".join(texts)
    if len(texts) < len(values) or "null" in together or "\\u0000" in together:
        return [encode_args({name: value}, what) for value in values]
    return texts


def encode(value: object, what: str) -> str:
    """Return the JSON text of a value, or raise `JobRejected` with `what` and the path of the fault in it."""
    try:
        text = orjson.dumps(value, option=_STRICT)
    except TypeError as error:  # JSONEncodeError is one
        raise JobRejected(
            f"{what} cannot be stored as JSON: {_fault_with_path(value) or error}. Pass text, numbers, lists and dicts, or"
            " annotate it and register its type with app.type(...)"
        ) from error
    # orjson writes NaN as null, and PostgreSQL cannot store U+0000. Both are rare, and both show in the text: only then
    # search the value.
    if b"null" in text or b"\\u0000" in text:
        fault = _fault_with_path(value)
        if fault:
            raise JobRejected(f"{what}: {fault}")
    return text.decode()


def _with_long_integers(value: object) -> object:
    """The same value, with each integer that is too long for orjson as a fragment of text."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(value))
    if type(value) is dict:
        return {key: _with_long_integers(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_with_long_integers(item) for item in value]
    return value


def _fault_with_path(value: object) -> str | None:
    try:
        return _fault(value)
    except RecursionError:
        return "it is nested too deeply or contains itself"


def _fault(value: object, path: str = "") -> str | None:
    where = path or "it"
    match value:
        case str() if "\x00" in value:
            return f"{where} contains a NUL character, which PostgreSQL cannot store"
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return f"{where} contains half a surrogate pair, which is not valid Unicode"
        case float() if not math.isfinite(value):
            return f"{where} is {value}, which JSON cannot represent"
        case int() if not -(2**63) <= value < 2**64:
            return f"{where} is an integer of more than 64 bits; pass it as text"
        case dict():
            return _fault_in_dict(value, path)
        case list() | tuple():
            return next((fault for n, item in enumerate(value) if (fault := _fault(item, f"{path}[{n}]"))), None)
        case None | bool() | int() | float() | str() | orjson.Fragment():
            return None
        case _:
            name = type(value).__name__
            return f"{where} is {'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _fault_in_dict(value: dict[Any, Any], path: str) -> str | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"{path or 'a dict'} has the key {key!r}, which is not text"
        fault = _fault(key, f"a key in {path or 'the value'}") or _fault(item, f"{path}.{key}" if path else key)
        if fault:
            return fault
    return None
