"""Read JSON values as annotations say. An annotation is looked at once; from then on it is a function.

What does not fit is a `Misfit`, and so is what fits two classes: nothing is guessed, dropped or converted in silence.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import types
import typing
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

import orjson

from faultline.values import kinds
from faultline.values.annotations import bare, hints_of, is_alias, mark, name_of
from faultline.values.writing import PLAIN, plain

Read = Callable[[Any], Any]

_SHOWN_MAX = 60
#: Called without arguments, these make what a defaultdict of them begins with.
_EMPTY = (int, float, str, bool, list, dict, set, Counter)


class Misfit(Exception):
    """A value that is not what its annotation says."""


def reader(annotation: Any) -> Read:
    """What reads values of this annotation: it returns them as they are to be, or raises `Misfit`."""
    try:
        return _known(annotation)
    except TypeError:
        # Metadata of `Annotated` that cannot be hashed.
        return _made(annotation)


@lru_cache(maxsize=2048)
def _known(annotation: Any) -> Read:
    return _made(annotation)


def forget() -> None:
    """Look at all annotations again: another type is registered."""
    _known.cache_clear()


def _made(annotation: Any) -> Read:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, object, inspect.Parameter.empty) or isinstance(annotation, typing.TypeVar | str):
        return _as_it_is
    if origin is typing.Annotated:
        return reader(parts[0])
    if isinstance(annotation, typing.NewType):
        return reader(annotation.__supertype__)
    if is_alias(annotation):
        # Not before a value comes: it may name itself.
        return lambda value: reader(annotation.__value__)(value)  # noqa: PLW0108
    if origin in (typing.Union, types.UnionType):
        return _union(parts)
    if origin is typing.Literal:
        return _literal(annotation, parts)
    if annotation in (None, type(None)):
        return lambda value: None if value is None else misfit(value, None)
    kind = origin or annotation
    return _guarded(_structured(kind, parts), annotation) if isinstance(kind, type) else _as_it_is


def _guarded(read: Read, annotation: Any) -> Read:
    """Whatever a class raises of its own: the value does not fit."""
    if read is _as_it_is:
        return read

    def guarded(value: Any) -> Any:
        try:
            return read(value)
        except Misfit:
            raise
        except Exception as error:
            raise Misfit(f"{short(value)} is not {name_of(annotation)}: {error}") from error

    return guarded


def _structured(kind: type, parts: tuple[Any, ...]) -> Read:  # noqa: C901, PLR0911 - one line for each kind of type
    own = kinds.of(kind)
    if own is not None:
        return own.read
    if hasattr(kind, "__struct_fields__"):
        return _struct(kind)
    if callable(getattr(kind, "model_validate_json", None)):
        return _model(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, parts)
    if issubclass(kind, Enum):
        return _enum(kind)
    if kind in _LEAVES:
        return _LEAVES[kind]
    if issubclass(kind, tuple):
        return _tuple(kind, parts)
    if issubclass(kind, Mapping):
        return _typed_dict(kind, parts) if hasattr(kind, "__required_keys__") else _mapping(kind, parts)
    if not issubclass(kind, str | bytes) and issubclass(kind, Iterable):
        return _items(kind, parts)
    if kind in (str, int, float, bool):
        return _of_json(kind)
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _of_json(kind: type) -> Read:
    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        return float(value) if kind is float and type(value) is int else misfit(value, kind)

    return read


def _dataclass(kind: Any, parts: tuple[Any, ...]) -> Read:
    fields = dataclasses.fields(kind)
    names = frozenset(one.name for one in fields)
    required = [one.name for one in fields if one.init and _is_required(one)]

    @cache
    def readers() -> dict[str, Read]:
        # Not before a value comes: a class may name itself.
        found = hints_of(kind, parts)
        return {one.name: reader(found.get(one.name, Any)) for one in fields if one.init}

    def read(value: Any) -> Any:
        given = _expect(value, dict)
        if not given.keys() <= names:
            _refuse_unknown(given, names, kind)
        _refuse_missing(given, required, kind)
        found = readers()
        if len(found) < len(names):
            given = {name: item for name, item in given.items() if name in found}
        return kind(**_fields(given, found))

    return read


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fields(given: Mapping[str, Any], readers: Mapping[str, Read]) -> dict[str, Any]:
    found = {}
    for name, item in given.items():
        try:
            found[name] = readers[name](item)
        except Misfit as error:
            raise Misfit(f"field {name}: {error}") from error
    return found


def _model(kind: Any) -> Read:
    """A pydantic model. It would drop what it does not know, unless it says itself what becomes of that."""
    fields = getattr(kind, "model_fields", {})
    aliases = [alias for one in fields.values() for alias in (one.alias, one.validation_alias) if alias is not None]
    says_itself = "extra" in kind.model_config or not all(isinstance(alias, str) for alias in aliases)
    names = None
    if not says_itself and not getattr(kind, "__pydantic_root_model__", False):
        names = frozenset({*fields, *aliases, *getattr(kind, "model_computed_fields", {})})
    # It is stored by the names of its fields. Over HTTP, its aliases may come.
    either = "by_name" in inspect.signature(kind.model_validate_json).parameters
    options = {"by_alias": True, "by_name": True} if either and aliases else {}

    def read(value: Any) -> Any:
        if names is not None and isinstance(value, dict) and not value.keys() <= names:
            _refuse_unknown(value, names, kind)
        return kind.model_validate_json(orjson.dumps(value), **options)

    return read


def _struct(kind: Any) -> Read:
    """A struct of msgspec, which ignores fields that it does not know."""
    import msgspec  # noqa: PLC0415 - it made the class, so it is there

    tag = kind.__struct_config__.tag_field
    names = frozenset({*kind.__struct_encode_fields__, *([] if tag is None else [tag])})

    def read(value: Any) -> Any:
        if isinstance(value, dict) and not value.keys() <= names:
            _refuse_unknown(value, names, kind)
        return msgspec.convert(value, kind, str_keys=True)

    return read


def _enum(kind: type[Enum]) -> Read:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except (ValueError, TypeError):
            pass
        for one in kind:
            # Its value may be stored as something else, as a tuple is.
            if plain(one.value) == value:
                return one
        known = ", ".join(short(plain(one.value)) for one in kind)
        raise Misfit(f"{short(value)} is not a value of {kind.__name__}, which has {known}")

    return read


def _tuple(kind: Any, parts: tuple[Any, ...]) -> Read:
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)

    @cache
    def readers() -> list[Read]:
        if names is None:
            return [reader(part) for part in parts]
        found = hints_of(kind, parts)
        return [reader(found.get(name, Any)) for name in names]

    def named(value: Any) -> Any:
        items = _expect(value, list)
        if len(items) > len(readers()):
            misfit(value, kind)
        # Fewer, if the others have defaults.
        return kind(*(read(item) for read, item in zip(readers(), items, strict=False)))

    def read(value: Any) -> Any:
        items = _expect(value, list)
        return tuple([read(item) for read, item in zip(readers(), items, strict=True)])

    if names is not None:
        return named
    if not parts:
        return lambda value: tuple(_expect(value, list))
    if parts[-1] is Ellipsis:
        each = reader(parts[0])
        return lambda value: tuple([each(item) for item in _expect(value, list)])
    return read


def _items(kind: type, parts: tuple[Any, ...]) -> Read:
    made: Callable[[list[Any]], Any] | None = None
    if issubclass(kind, AbstractSet):
        made = frozenset if kind is frozenset else set
    elif kind is deque:
        made = deque

    @cache
    def each() -> Read:
        return reader(parts[0] if parts else Any)

    def read(value: Any) -> Any:
        one = each()
        items = [one(item) for item in _expect(value, list)]
        return items if made is None else made(items)

    return read


def _mapping(kind: type, parts: tuple[Any, ...]) -> Read:
    of_key, of_item = (*parts[:1], Any)[0], int if kind is Counter else (*parts[1:], Any)[0]
    made: Any = None
    if kind is defaultdict:
        made = _with_default(of_item)
    elif issubclass(kind, dict) and kind is not dict:
        made = kind

    @cache
    def readers() -> tuple[Read, Read]:
        return _key(of_key), reader(of_item)

    def read(value: Any) -> Any:
        key, item = readers()
        found = {key(name): item(one) for name, one in _expect(value, dict).items()}
        return found if made is None else made(found)

    return read


def _with_default(of_item: Any) -> Callable[[dict[Any, Any]], defaultdict[Any, Any]]:
    """What a defaultdict makes of a missing key is a function, and not stored. By its annotation it is known for these."""
    kind = typing.get_origin(of_item) or of_item

    def made(found: dict[Any, Any]) -> defaultdict[Any, Any]:
        if kind not in _EMPTY:
            raise Misfit(
                f"{short(found)} cannot be a defaultdict of {name_of(of_item)}: its factory is not stored; use a dict"
            )
        return defaultdict(kind, found)

    return made


def _key(annotation: Any) -> Read:
    read = reader(annotation)
    if annotation is str or read is _as_it_is:
        return _as_it_is

    def key(text: str) -> Any:
        try:
            return read(text)
        except Misfit:
            # All keys of JSON are text, also those that were numbers.
            try:
                number = orjson.loads(text)
            except orjson.JSONDecodeError:
                number = text
            if number == text:
                raise
        return read(number)

    return key


def _typed_dict(kind: Any, parts: tuple[Any, ...]) -> Read:
    @cache
    def known() -> tuple[dict[str, Read], list[str]]:
        found = hints_of(kind, parts)
        # Where annotations are text, the class itself does not see `NotRequired`.
        optional = {name for name, hint in found.items() if mark(hint) == "NotRequired"}
        names = {*kind.__required_keys__, *kind.__optional_keys__}
        readers = {name: reader(bare(found.get(name, Any))) for name in names}
        return readers, sorted(kind.__required_keys__ - optional)

    def read(value: Any) -> Any:
        given = _expect(value, dict)
        readers, required = known()
        if not given.keys() <= readers.keys():
            _refuse_unknown(given, readers, kind)
        _refuse_missing(given, required, kind)
        return _fields(given, readers)

    return read


def _union(members: tuple[Any, ...]) -> Read:
    others = [member for member in members if member is not type(None)]
    if len(others) == 1 < len(members):
        read = reader(others[0])
        return lambda value: None if value is None else read(value)
    readers = [(member, reader(member)) for member in members]
    return lambda value: None if value is None and len(others) < len(members) else _one_of(value, readers)


def _one_of(value: Any, readers: list[tuple[Any, Read]]) -> Any:
    """The member that it fits. A plain JSON type goes first: a text that is also a date stays a text in `str | date`.

    Of several, the one that would be stored as just this value. JSON does not say which class it was, so nobody guesses.
    """
    fits, faults = [], []
    for member, read in readers:
        try:
            fits.append((member, read(value)))
        except Misfit as error:
            faults.append(str(error))
    if not fits:
        raise Misfit("; ".join(faults))
    # Any value fits a class that cannot be read: it counts if nothing else fits.
    fits = [(member, found) for member, found in fits if reader(member) is not _as_it_is] or fits
    plainly = [found for member, found in fits if member in PLAIN or typing.get_origin(member) is typing.Literal]
    if plainly:
        # Of `int | float`, the one that needs no conversion.
        return next((found for found in plainly if type(found) is type(value)), plainly[0])
    exact = fits if len(fits) == 1 else [(member, found) for member, found in fits if plain(found) == value] or fits
    first = exact[0][1]
    if all(type(found) is type(first) and found == first for _, found in exact):
        return first
    names = " and ".join(name_of(member) for member, _ in exact)
    raise Misfit(
        f"{short(value)} fits {names}, and nothing in it says which; give them different fields, or a field with a Literal"
        " of its own in each"
    )


def _literal(annotation: Any, members: tuple[Any, ...]) -> Read:
    known = [(plain(member), member) for member in members]

    def read(value: Any) -> Any:
        for stored, member in known:
            if stored == value and type(stored) is type(value):
                return member
        return misfit(value, annotation)

    return read


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str], kind: Any) -> None:
    unknown = sorted(set(given) - set(known))
    raise Misfit(f"{short(given)} is not {name_of(kind)}, which has no field {', '.join(unknown)}")


def _refuse_missing(given: Mapping[str, Any], required: Iterable[str], kind: Any) -> None:
    missing = [name for name in required if name not in given]
    if missing:
        raise Misfit(f"{short(given)} is not {name_of(kind)}: it lacks the field {', '.join(missing)}")


def _expect(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else misfit(value, kind)


def misfit(value: Any, annotation: Any) -> Any:
    raise Misfit(f"{short(value)} is not {name_of(annotation)}")


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


_LEAVES: dict[type, Read] = {
    datetime: lambda value: datetime.fromisoformat(_expect(value, str)),
    date: lambda value: date.fromisoformat(_expect(value, str)),
    time: lambda value: time.fromisoformat(_expect(value, str)),
    timedelta: lambda value: timedelta(seconds=value),
    UUID: lambda value: UUID(_expect(value, str)),
    Decimal: lambda value: Decimal(_expect(value, str)),
    bytes: lambda value: base64.b64decode(_expect(value, str), validate=True),
}
