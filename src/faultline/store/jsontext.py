"""JSON text in and out. What PostgreSQL could not store or would change is refused here, with the reason.

Arguments are kept as the text that was sent, so their integers may have any size. Results, steps and progress are jsonb,
which writes 1e20 as an integer: there an integer of more than 64 bits could not be told from a float, and is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from faultline.core.errors import JobRejected, UnreadableJson

# Refuse what would come back as something else: a datetime or a dataclass would return as text or as a dict. (A UUID and
# an Enum do come back as text and as their value: orjson has no way to refuse them.)
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
# What orjson would read as a float has at least this many digits in a row.
_LONG = 19
_LONG_NUMBER = b"0" * _LONG
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


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
        # Python's own reader takes for JSON what orjson refuses.
        fault = _place_of_fault(_with_long_integers(value))
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(f"invalid JSON: {error}") from error
    if fault:
        raise UnreadableJson(f"invalid JSON: {fault}")
    return value


def encode_args(value: object, what: str) -> str:
    """Give the text of arguments, as `encode` does."""
    try:
        return encode(value, what)
    except JobRejected as refused:
        try:
            written = _with_long_integers(value)
        except (ValueError, RecursionError):
            raise refused from None
    return encode(written, what)


def encode(value: object, what: str) -> str:
    """Give the JSON text of a value, or raise `JobRejected` naming `what` and the place of the fault in it."""
    try:
        text = orjson.dumps(value, option=_STRICT)
    except TypeError as error:  # JSONEncodeError is one
        raise JobRejected(
            f"{what} cannot be stored as JSON: {_place_of_fault(value) or error}. Pass text, numbers, lists and dicts"
        ) from error
    # orjson writes NaN as null and PostgreSQL cannot hold U+0000. Both are rare, and both leave a trace in the text:
    # only then is the value walked through.
    if b"null" in text or b"\\u0000" in text:
        fault = _place_of_fault(value)
        if fault:
            raise JobRejected(f"{what}: {fault}")
    return text.decode()


def _with_long_integers(value: object) -> object:
    """The same value, where each integer that orjson has no room for is the text that it is to write."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return orjson.Fragment(str(value))
    if type(value) is dict:
        return {key: _with_long_integers(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_with_long_integers(item) for item in value]
    return value


def _place_of_fault(value: object) -> str | None:
    try:
        return _fault(value)
    except RecursionError:
        return "it is nested too deeply or contains itself"


def _fault(value: object, path: str = "") -> str | None:
    place = path or "the value itself"
    match value:
        case str() if "\x00" in value:
            return f"{place} contains a NUL character, which PostgreSQL cannot store"
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return f"{place} contains half a surrogate pair, which is not valid Unicode"
        case float() if not math.isfinite(value):
            return f"{place} is {value}, which JSON cannot represent"
        case int() if not -(2**63) <= value < 2**64:
            return f"{place} is an integer of more than 64 bits; pass it as text"
        case dict():
            return _fault_in_dict(value, path)
        case list() | tuple():
            return next((fault for n, item in enumerate(value) if (fault := _fault(item, f"{path}[{n}]"))), None)
        case None | bool() | int() | float() | str() | orjson.Fragment():
            return None
        case _:
            return f"{place} is a {type(value).__name__}"


def _fault_in_dict(value: dict[Any, Any], path: str) -> str | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"{path or 'a dict'} has the key {key!r}, which is not text"
        fault = _fault(key, f"a key in {path or 'the value'}") or _fault(item, f"{path}.{key}" if path else key)
        if fault:
            return fault
    return None
