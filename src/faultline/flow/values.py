"""How values of a program are stored as JSON and read again, by their annotations.

JSON types, lists, dicts, tuples, unions, enums, dates, UUIDs, dataclasses, and pydantic models where they are installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson

from faultline.core.errors import JobRejected
from faultline.store import jsontext

_PLAIN = (str, int, float, bool, type(None))
_DIGEST_BYTES = 16
#: What may stand around the type of a field in a TypedDict.
_MARKS = ("Required", "NotRequired", "ReadOnly")
#: JSON texts have floats from here on with an exponent.
_EXPONENT_FROM = 1e16


class Misfit(Exception):
    """A value that is not what its annotation says."""


def plain(value: Any, *, brief: bool = False) -> Any:  # noqa: PLR0911 - one line for each kind of type
    """The same value in JSON types. What has none stays as it is, for the encoder to refuse.

    :param brief: Without fields that have their defaults: a field that a later build adds changes nothing.
    """
    if type(value) in _PLAIN:
        return value
    match value:
        case Enum():
            return plain(value.value)
        case dict():
            return {_key(key): plain(item, brief=brief) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, brief=brief) for item in value]
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID() | Decimal():
            return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [one for one in dataclasses.fields(value) if not (brief and _is_default(one, getattr(value, one.name)))]
        return {one.name: plain(getattr(value, one.name), brief=brief) for one in fields}
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_defaults=brief) if callable(dump) else value


def _key(key: Any) -> Any:
    found = plain(key)
    return str(found) if isinstance(key, UUID | Enum | date) else found


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(field.default == value)
    return field.default_factory is not dataclasses.MISSING and bool(field.default_factory() == value)


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


def typed(value: Any, annotation: Any) -> Any:
    """A JSON value as its annotation says; `Misfit` if it cannot be."""
    if isinstance(value, jsontext.Unreadable):
        raise Misfit(value.why)
    if annotation in (Any, object, inspect.Parameter.empty) or isinstance(annotation, typing.TypeVar | str):
        return value
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated or isinstance(annotation, typing.NewType):
        return typed(value, annotation.__supertype__ if isinstance(annotation, typing.NewType) else annotation.__origin__)
    if origin in (typing.Union, types.UnionType):
        return _one_of(value, typing.get_args(annotation))
    if origin is typing.Literal:
        return value if value in typing.get_args(annotation) else _misfit(value, annotation)
    if annotation in (None, type(None)):
        return None if value is None else _misfit(value, annotation)
    try:
        return _structured(value, origin or annotation, typing.get_args(annotation))
    except Misfit:
        raise
    except Exception as error:
        raise Misfit(f"{_short(value)} is not {name_of(annotation)}: {error}") from error


def _structured(value: Any, kind: Any, parts: tuple[Any, ...]) -> Any:  # noqa: C901, PLR0911 - likewise
    if not isinstance(kind, type):
        return value
    if callable(getattr(kind, "model_validate", None)):
        return _model(value, kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(value, kind)
    if issubclass(kind, Enum):
        return kind(value)
    if kind in _READERS:
        return _READERS[kind](value)
    if issubclass(kind, tuple):
        return _tuple(value, kind, parts)
    if issubclass(kind, Mapping):
        return _mapping(value, kind, parts)
    if not issubclass(kind, str | bytes) and issubclass(kind, Iterable):
        items = [typed(item, parts[0] if parts else Any) for item in _expect(value, list)]
        return kind(items) if kind in (set, frozenset) else items
    if kind is float and type(value) is int:
        return float(value)
    if kind in (str, int, float, bool) and not isinstance(value, kind):
        return _misfit(value, kind)
    return value


def _dataclass(value: Any, kind: Any) -> Any:
    hints, fields = _hints(kind), dataclasses.fields(kind)
    given = _expect(value, dict)
    _refuse_unknown(given, {one.name for one in fields}, kind)
    made = [one for one in fields if one.init]
    _refuse_missing(given, [one.name for one in made if _is_required(one)], kind)
    return kind(
        **{one.name: _field(given[one.name], hints.get(one.name, Any), one.name) for one in made if one.name in given}
    )


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _model(value: Any, kind: Any) -> Any:
    """A pydantic model. It would drop what it does not know, unless it says itself what becomes of that."""
    read = kind.model_validate(value)
    fields = getattr(kind, "model_fields", {})
    aliases = [alias for one in fields.values() for alias in (one.alias, one.validation_alias) if alias is not None]
    says_itself = "extra" in kind.model_config or not all(isinstance(alias, str) for alias in aliases)
    if isinstance(value, dict) and not says_itself and not getattr(kind, "__pydantic_root_model__", False):
        _refuse_unknown(value, {*fields, *aliases, *getattr(kind, "model_computed_fields", {})}, kind)
    return read


def _field(value: Any, annotation: Any, name: str) -> Any:
    try:
        return typed(value, annotation)
    except Misfit as error:
        raise Misfit(f"field {name}: {error}") from error


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str], kind: Any) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise Misfit(f"{_short(given)} is not {name_of(kind)}, which has no field {', '.join(unknown)}")


def _refuse_missing(given: Mapping[str, Any], required: Iterable[str], kind: Any) -> None:
    missing = [name for name in required if name not in given]
    if missing:
        raise Misfit(f"{_short(given)} is not {name_of(kind)}: it lacks the field {', '.join(missing)}")


def _tuple(value: Any, kind: type, parts: tuple[Any, ...]) -> Any:
    items = _expect(value, list)
    if hasattr(kind, "_fields"):
        hints = _hints(kind)
        return kind(*(typed(item, hints.get(name, Any)) for name, item in zip(kind._fields, items, strict=True)))
    if not parts:
        return tuple(items)
    if parts[-1] is Ellipsis:
        return tuple(typed(item, parts[0]) for item in items)
    return tuple(typed(item, part) for item, part in zip(items, parts, strict=True))


def _mapping(value: Any, kind: type, parts: tuple[Any, ...]) -> Any:
    given = _expect(value, dict)
    if hasattr(kind, "__required_keys__"):
        hints = _hints(kind)
        _refuse_unknown(given, {*kind.__required_keys__, *kind.__optional_keys__}, kind)  # type: ignore[attr-defined]
        _refuse_missing(given, sorted(kind.__required_keys__), kind)
        return {key: _field(item, _bare(hints.get(key, Any)), key) for key, item in given.items()}
    of_key, of_item = parts if len(parts) > 1 else (Any, Any)
    return {_typed_key(key, of_key): typed(item, of_item) for key, item in given.items()}


def _typed_key(key: str, annotation: Any) -> Any:
    return int(key) if annotation is int else typed(key, annotation)


def _bare(annotation: Any) -> Any:
    """Without `Required`, `NotRequired` and `ReadOnly`, which say nothing about the value."""
    while getattr(typing.get_origin(annotation), "__name__", getattr(typing.get_origin(annotation), "_name", "")) in _MARKS:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _one_of(value: Any, members: tuple[Any, ...]) -> Any:
    """The member that it fits. A plain JSON type goes first: a text that is also a date stays a text in `str | date`.

    Of several, the one that would be stored as just this value. JSON does not say which class it was, so nobody guesses.
    """
    if value is None and type(None) in members:
        return None
    fits, faults = [], []
    for member in members:
        try:
            fits.append((member, typed(value, member)))
        except Misfit as error:
            faults.append(str(error))
    if not fits:
        raise Misfit("; ".join(faults))
    plainly = [read for member, read in fits if _is_plain(member)]
    if plainly:
        # Of `int | float`, the one that needs no conversion.
        return next((read for read in plainly if type(read) is type(value)), plainly[0])
    exact = fits if len(fits) == 1 else [(member, read) for member, read in fits if plain(read) == value] or fits
    first = exact[0][1]
    if all(type(read) is type(first) and read == first for _, read in exact):
        return first
    names = " and ".join(name_of(member) for member, _ in exact)
    raise Misfit(
        f"{_short(value)} fits {names}, and nothing in it says which; give them different fields, or a field with a Literal"
        " of its own in each"
    )


def _is_plain(member: Any) -> bool:
    return member in _PLAIN or typing.get_origin(member) is typing.Literal


def _expect(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else _misfit(value, kind)


def _misfit(value: Any, annotation: Any) -> Any:
    raise Misfit(f"{_short(value)} is not {name_of(annotation)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - as much as fits a line


def name_of(annotation: Any) -> str:
    """An annotation, as people read it."""
    return getattr(annotation, "__name__", None) or str(annotation)


_READERS: dict[type, Callable[[Any], Any]] = {
    datetime: lambda value: datetime.fromisoformat(_expect(value, str)),
    date: lambda value: date.fromisoformat(_expect(value, str)),
    timedelta: lambda value: timedelta(seconds=value),
    UUID: lambda value: UUID(_expect(value, str)),
    Decimal: lambda value: Decimal(_expect(value, str)),
}


@lru_cache(maxsize=1024)
def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that only a type checker knows
        return {}


def annotated(function: Any, name: str) -> Any:
    """The annotation of a parameter, or of what is returned; Any if there is none or it cannot be read."""
    function = inspect.unwrap(function)
    try:
        names = {**getattr(function, "__globals__", {}), **inspect.getclosurevars(function).nonlocals}
        # Alone: another annotation may have a name that only a type checker knows.
        alone = types.FunctionType((lambda: None).__code__, {})
        alone.__annotations__ = {name: function.__annotations__[name]}
        return typing.get_type_hints(alone, globalns=names, include_extras=True)[name]
    except Exception:  # noqa: BLE001 - likewise
        return Any


def returned(function: Any, but: tuple[type, ...] = ()) -> Any:
    """What a function returns by its annotation; Any if that cannot be read.

    :param but: Classes that are no results: they are left out of a union.
    """
    annotation = annotated(function, "return")
    members = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    if not set(members) & set(but):
        return annotation
    left = tuple(member for member in members if member not in but)
    return typing.Union[left] if left else Any  # noqa: UP007 - made when the program runs


def is_read(annotation: Any) -> bool:  # noqa: PLR0911 - one line for each kind of type, as in `typed`
    """Whether a JSON value becomes something else by `typed`. If not, it needs no reading."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, typing.NewType):
        return is_read(annotation.__supertype__)
    if origin is typing.Annotated:
        return is_read(parts[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(is_read, parts))
    kind = origin or annotation
    if not isinstance(kind, type) or kind in (*_PLAIN, object, bytes):
        return False
    if callable(getattr(kind, "model_validate", None)) or dataclasses.is_dataclass(kind) or kind in _READERS:
        return True
    if hasattr(kind, "__required_keys__"):
        return any(is_read(_bare(one)) for one in _hints(kind).values())
    if issubclass(kind, Mapping):
        return bool(parts) and (parts[0] not in (str, Any) or is_read(parts[1]))
    if issubclass(kind, Enum | tuple | set | frozenset):
        return True
    return issubclass(kind, Iterable) and any(map(is_read, parts))


def args_text(given: Mapping[str, Any], what: str) -> str:
    """The JSON text of arguments, or `JobRejected`."""
    try:
        as_json = plain(dict(given))
    except RecursionError:
        as_json = given
    return jsontext.encode_args(as_json, what)


def text_of(value: Any, what: str) -> str:
    """The JSON text of a value, or `JobRejected`."""
    try:
        return jsontext.encode(value, what)
    except JobRejected:
        as_json = plain(value)
        if as_json is value:
            raise
    return jsontext.encode(as_json, what)


def is_same_kind(value: Any, read: Any, inside: tuple[type, ...] = ()) -> bool:
    """Whether what is read again is of the class that was stored, where that is not a JSON type.

    :param inside: Classes that must be the same inside of lists and dicts too, beside dataclasses and models.
    """
    if isinstance(value, (*_PLAIN, dict, list, tuple)):
        return _has_same_kinds(value, read, inside)
    return type(read) is type(value) and _has_same_kinds(value, read, inside)


def _has_same_kinds(value: Any, read: Any, inside: tuple[type, ...]) -> bool:
    if isinstance(value, dict) and isinstance(read, dict):
        # By their keys: what is stored may come back in another order.
        return all(_has_same_kinds(item, read.get(key, read.get(_key(key))), inside) for key, item in value.items())
    if isinstance(value, list | tuple) and isinstance(read, list | tuple):
        return all(_has_same_kinds(item, other, inside) for item, other in zip(value, read, strict=False))
    if callable(getattr(value, "model_dump", None)):
        return type(read) is type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(read) is type(value) and all(
            _has_same_kinds(getattr(value, one.name), getattr(read, one.name), inside) for one in dataclasses.fields(value)
        )
    return not isinstance(value, inside) or type(read) is type(value)
