"""Exceptions as the database has them: their class, arguments and attributes, and what comes back.

A program gets the same exception in every run, so the one that was raised is replaced by the one that is read. Its
`__init__` is not called again: it may take other arguments than the exception keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core.errors import JobRejected
from faultline.store import jsontext
from faultline.values.annotations import annotated, hints
from faultline.values.reading import Misfit
from faultline.values.stored import as_stored, is_same_kind, text_of, typed

if TYPE_CHECKING:
    from collections.abc import Iterator

Classes = tuple[type[Exception], ...]


def write_exception(error: Exception, declared: Classes) -> dict[str, Any]:
    """What to store of an exception, in JSON types; `JobRejected` if `read_exception` would make another one of it.

    :param declared: The classes of which it is one; it may be of one that inherits from them.
    """
    kind = type(error)
    twins = [one for one in _known(declared) if full_name(one) == full_name(kind)]
    if twins != [kind]:
        bases = ", ".join(one.__name__ for one in declared)
        raise JobRejected(f"{len(twins)} classes that inherit from {bases} are named {full_name(kind)}")
    args, attributes = _parts(error)
    return {
        "class": full_name(kind),
        "args": [_argument(kind, one, attributes, index) for index, one in enumerate(args)],
        "attributes": {
            name: _written(kind, value, _annotation(kind, name), f"attribute {name}") for name, value in attributes.items()
        },
    }


def read_exception(stored: dict[str, Any], declared: Classes) -> Exception | None:
    """The exception that was stored; None: its class is not there any more. `Misfit` if its attributes do not fit now."""
    kind = _found(stored["class"], declared)
    if kind is None:
        return None
    attributes = {name: typed(value, _annotation(kind, name)) for name, value in stored["attributes"].items()}
    args = tuple(attributes.get(one["attribute"]) if "attribute" in one else one["value"] for one in stored["args"])
    base = _builtin(kind)
    made: Exception = base.__new__(kind, *args)
    base.__init__(made, *args)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)  # whatever its class refuses to its users
    return made


def full_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _parts(error: Exception) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Its arguments and attributes, as Python's own classes keep them: of an OSError, the file is among the arguments."""
    reduced: Any = _builtin(type(error)).__reduce__(error)
    state: Any = object.__getstate__(error)  # type: ignore[attr-defined,unused-ignore]
    slots = state[1] if isinstance(state, tuple) else {}
    return reduced[1], {**((reduced[2] if len(reduced) > 2 else None) or {}), **slots}  # noqa: PLR2004 - no state


def _argument(kind: type, value: Any, attributes: dict[str, Any], index: int) -> dict[str, Any]:
    """An argument that is an attribute too is read by the annotation of that one: as for a dataclass."""
    name = next((name for name, other in attributes.items() if other is value), None)
    return {"value": _written(kind, value, Any, f"argument {index + 1}")} if name is None else {"attribute": name}


def _written(kind: type, value: Any, annotation: Any, what: str) -> Any:
    what = f"{what} of {kind.__name__}"
    stored = as_stored(jsontext.decode(text_of(value, what, annotated=annotation is not Any)))
    try:
        read = typed(stored, annotation)
    except Misfit as error:
        raise JobRejected(f"{what} does not fit its annotation: {error}") from error
    if not is_same_kind(value, read):
        raise JobRejected(f"{what} is a {type(value).__name__} and would be read as a {type(read).__name__}; annotate it")
    return stored


def _annotation(kind: type, name: str) -> Any:
    """Of an attribute: that of the class, or of the parameter with its name."""
    found = hints(kind)
    return found[name] if name in found else annotated(kind.__init__, name)  # type: ignore[misc]  # of whatever class


def _builtin(kind: type) -> Any:
    """Python's own class that it inherits from."""
    return next(one for one in kind.__mro__ if one.__module__ == "builtins")


def _known(declared: Classes) -> list[type[Exception]]:
    """These classes, and all that inherit from them."""
    found: dict[type[Exception], None] = {}
    for one in declared:
        found.update(dict.fromkeys(_with_heirs(one)))
    return list(found)


def _with_heirs(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for one in type.__subclasses__(kind):
        yield from _with_heirs(one)


def _found(name: str, declared: Classes) -> type[Exception] | None:
    """The class of this name. One that was moved to another module, as from `__main__`, is known by its own name."""
    known = _known(declared)
    exact = [one for one in known if full_name(one) == name]
    found = exact or [one for one in known if one.__qualname__ == name.rpartition(":")[2]]
    return found[0] if len(found) == 1 else None
