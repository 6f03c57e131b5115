"""What annotations say: of functions, and of the fields of classes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import types
import typing
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from faultline.values import kinds
from faultline.values.writing import PLAIN

#: What may stand around the type of a field in a TypedDict.
_MARKS = ("Required", "NotRequired", "ReadOnly")
#: Classes of the standard library that are stored as text or a number.
LEAVES = (datetime, date, time, timedelta, UUID, Decimal, bytes)


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


def returned(function: Any) -> Any:
    """What a function returns by its annotation; Any if that cannot be read.

    Outcomes and exceptions are left out of a union: no job ends with one of these as its result.
    """
    annotation = annotated(function, "return")
    members = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    left = tuple(member for member in members if not (isinstance(member, type) and issubclass(member, BaseException)))
    if len(left) == len(members):
        return annotation
    return typing.Union[left] if left else Any  # noqa: UP007 - made when the program runs


def is_read(annotation: Any) -> bool:
    """Whether a JSON value becomes something else by its reader. If not, it needs no reading."""
    try:
        return _is_read(annotation)
    except RecursionError:
        return True  # a TypedDict that names itself


def _is_read(annotation: Any) -> bool:  # noqa: PLR0911, C901 - one line for each kind of type, as `reading` has them
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, typing.NewType):
        return _is_read(annotation.__supertype__)
    if origin is typing.Annotated:
        return _is_read(parts[0])
    if is_alias(annotation):
        return _is_read(annotation.__value__)
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_read, parts))
    if origin is typing.Literal:
        return any(type(part) not in PLAIN for part in parts)
    kind = origin or annotation
    if not isinstance(kind, type) or kind in (*PLAIN, object):
        return False
    if kinds.of(kind) is not None or kind in LEAVES or dataclasses.is_dataclass(kind):
        return True
    if hasattr(kind, "__struct_fields__") or callable(getattr(kind, "model_validate_json", None)):
        return True
    if hasattr(kind, "__required_keys__"):
        return any(_is_read(bare(one)) for one in hints(kind).values())
    if issubclass(kind, dict) and kind is not dict:
        return True
    if issubclass(kind, Mapping):
        return bool(parts) and (parts[0] not in (str, Any) or any(map(_is_read, parts[1:])))
    if issubclass(kind, Enum | tuple | AbstractSet | deque):
        return True
    return issubclass(kind, Iterable) and any(map(_is_read, parts))


def bare(annotation: Any) -> Any:
    """Without `Required`, `NotRequired` and `ReadOnly`, which say nothing about the value."""
    while mark(annotation) in _MARKS:
        annotation = typing.get_args(annotation)[0]
    return annotation


def mark(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    return getattr(origin, "__name__", None) or getattr(origin, "_name", None) or ""


def name_of(annotation: Any) -> str:
    """An annotation, as people read it."""
    return getattr(annotation, "__name__", None) or str(annotation)


def is_alias(annotation: Any) -> bool:
    """Whether it was made by `type Alias = …`."""
    return type(annotation).__name__ == "TypeAliasType"


def hints_of(kind: Any, parts: tuple[Any, ...]) -> dict[str, Any]:
    """The annotations of a class, with those of `Box[int]` in the place of its type variables."""
    given: dict[Any, dict[Any, Any]] = {}
    _fill(given, kind, parts)
    found = hints(kind)
    if not any(given.values()):
        return found
    return {name: _filled(hint, given.get(_owner(kind, name), {})) for name, hint in found.items()}


def _fill(given: dict[Any, dict[Any, Any]], kind: Any, parts: tuple[Any, ...]) -> None:
    """What stands for the type variables of a class, and of those that it inherits from: these may have the same ones."""
    given[kind] = own = dict(zip(getattr(kind, "__parameters__", ()), parts, strict=False))
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = typing.get_origin(base) or base
        if isinstance(origin, type) and origin not in (typing.Generic, typing.Protocol, object):
            _fill(given, origin, tuple(_filled(one, own) for one in typing.get_args(base)))


def _owner(kind: Any, name: str) -> Any:
    return next((base for base in kind.__mro__ if name in _written(base)), kind)


def _filled(hint: Any, given: dict[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return given.get(hint, Any)
    inside = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(one, Any) for one in inside)] if inside else hint


@lru_cache(maxsize=1024)
def hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that only a type checker knows
        return _hints_alone(kind)


def _hints_alone(kind: Any) -> dict[str, Any]:
    """Each annotation by itself: one that cannot be read must not keep the others from being read."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        names = {**vars(sys.modules.get(base.__module__, types.ModuleType(""))), base.__name__: base}
        for name, written in _written(base).items():
            alone = type(base.__name__, (), {"__annotations__": {name: written}, "__module__": base.__module__})
            found.pop(name, None)
            with contextlib.suppress(Exception):
                found[name] = typing.get_type_hints(alone, globalns=names, include_extras=True)[name]
    return found


def _written(kind: type) -> dict[str, Any]:
    """The annotations of a class itself, as they are written."""
    try:
        return dict(inspect.get_annotations(kind))
    except NameError:  # from Python 3.14 on they are read when they are asked for
        import annotationlib  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

        return dict(annotationlib.get_annotations(kind, format=annotationlib.Format.FORWARDREF))
