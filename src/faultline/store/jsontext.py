"""JSON text in and out. What PostgreSQL could not store or would change is refused here, with the reason."""

from __future__ import annotations

import math
from typing import Any

import orjson

from faultline.core.errors import JobRejected, UnreadableJson

# Refuse what would come back as something else: a datetime or a dataclass would return as text or as a dict. (A UUID and
# an Enum do come back as text and as their value: orjson has no way to refuse them.)
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS


def decode(text: str) -> Any:
    """Read JSON text, or raise `UnreadableJson`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnreadableJson(f"this JSON cannot be read: {error}") from error


def encode(value: object, what: str) -> str:
    """Give the JSON text of a value, or raise `JobRejected` naming `what` and the place of the fault in it."""
    try:
        text = orjson.dumps(value, option=_STRICT)
    except TypeError as error:  # JSONEncodeError is one
        raise JobRejected(
            f"{what}: no JSON: {_place_of_fault(value) or error}. Pass text, numbers, lists and dicts"
        ) from error
    # orjson writes NaN as null and PostgreSQL cannot hold U+0000. Both are rare, and both leave a trace in the text:
    # only then is the value walked through.
    if b"null" in text or b"\\u0000" in text:
        fault = _place_of_fault(value)
        if fault:
            raise JobRejected(f"{what}: {fault}")
    return text.decode()


def _place_of_fault(value: object) -> str | None:
    try:
        return _fault(value)
    except RecursionError:
        return "it is nested too deeply, or contains itself"


def _fault(value: object, path: str = "") -> str | None:
    place = path or "the value itself"
    match value:
        case str() if "\x00" in value:
            return f"{place} holds a NUL character, which PostgreSQL cannot store"
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return f"{place} holds half a surrogate pair, which is no Unicode text"
        case float() if not math.isfinite(value):
            return f"{place} is {value}, which JSON cannot say"
        case int() if not -(2**63) <= value < 2**64:
            return f"{place} is an integer of more than 64 bits; pass it as text"
        case dict():
            return _fault_in_dict(value, path)
        case list() | tuple():
            return next((fault for n, item in enumerate(value) if (fault := _fault(item, f"{path}[{n}]"))), None)
        case None | bool() | int() | float() | str():
            return None
        case _:
            return f"{place} is a {type(value).__name__}"


def _fault_in_dict(value: dict[Any, Any], path: str) -> str | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"{path or 'a dict'} has the key {key!r}, which is no text"
        fault = _fault(key, f"a key in {path or 'the value'}") or _fault(item, f"{path}.{key}" if path else key)
        if fault:
            return fault
    return None
