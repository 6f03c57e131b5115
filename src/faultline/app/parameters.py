"""How the arguments and results of a task are stored and read, by the annotations of its function.

Most annotations are plain JSON types, or there are none: then what JSON gives is handed over as it is, and no job pays for
those of others. A dataclass, a date, a UUID, … is read again before the function is called, and before a result is returned.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline import values
from faultline.attempt.storable_text import result_text
from faultline.core.errors import JobRejected
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: These have always been stored without an annotation, and arrive as text then.
_AS_TEXT = (UUID, Enum)
#: These would arrive as text, a number or a list from inside a list or dict that does not say what it holds.
_INSIDE = (date, time, timedelta, Decimal, bytes, set, frozenset)
#: Where an annotation says what something holds, these must fit it as well.
_INSIDE_READ = (*_INSIDE, *_AS_TEXT)


class Parameters:
    """The parameters of one task."""

    def __init__(self, fn: Callable[..., Any], signature: inspect.Signature, task: str) -> None:
        self._fn = fn
        self._signature = signature
        self.about = f"arguments of {task}"

    def forget(self) -> None:
        """Look at the annotations again: another type is registered."""
        for name in ("_read", "_further", "are_read"):
            self.__dict__.pop(name, None)

    @cached_property
    def _read(self) -> dict[str, values.Read]:
        """What reads the arguments that are read. Found when first needed: annotations may name what is defined later."""
        found = {name: values.annotated(function_of(self._fn), name) for name in self._signature.parameters}
        return {name: values.reader(annotation) for name, annotation in found.items() if values.is_read(annotation)}

    @cached_property
    def _further(self) -> str | None:
        """The name of `**kwargs`, if these are read."""
        kinds = {one.name for one in self._signature.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD}
        return next((name for name in self._read if name in kinds), None)

    @cached_property
    def are_read(self) -> bool:
        """Whether some are read by their annotations."""
        return bool(self._read)

    def text(self, given: Mapping[str, Any]) -> str:
        """The JSON text of these arguments; `JobRejected` if they could not be stored, or would arrive as others."""
        try:
            text = jsontext.encode_args(given, self.about)
        except JobRejected:
            text = values.args_text(given, self.about)
        else:
            if not self.are_read:
                return text
        try:
            read = self.arguments(jsontext.decode_args(text))
        except values.Misfit as error:
            raise JobRejected(f"{self.about}: {error}") from error
        for name, value in given.items():
            is_read = self._reader(name) is not None
            if isinstance(value, _AS_TEXT) and not is_read:
                continue
            if not values.is_same_kind(value, read[name], _INSIDE_READ if is_read else _INSIDE):
                advice = self._advice(name, value, read[name])
                raise JobRejected(f"{self.about}: {name} {_arrives(value, read[name])}; {advice}")
        return text

    def _advice(self, name: str, value: Any, read: Any) -> str:
        """What to do about a value that would arrive as another."""
        if type(read) is type(value) and not isinstance(value, Collection):
            return "annotate its fields with what they hold, and let the class store all of them"
        parameter = self._signature.parameters.get(name)
        written = inspect.Parameter.empty if parameter is None else parameter.annotation
        if (
            written is inspect.Parameter.empty
            or values.annotated(function_of(self._fn), name) is not Any
            or "Any" in str(written)
        ):
            return "annotate the parameter with its type"
        return f"its annotation {written!r} names what is not there when the program runs; import it at run time"

    def arguments(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Stored arguments as the function takes them; `values.Misfit`, with the parameter, if one does not fit."""
        return {name: self._argument(name, value) for name, value in stored.items()}

    def _argument(self, name: str, value: Any) -> Any:
        read = self._reader(name)
        if read is None:
            return value
        try:
            return read(value)
        except values.Misfit as error:
            raise values.Misfit(f"{name} does not fit its annotation: {error}") from error

    def _reader(self, name: str) -> values.Read | None:
        """None: it is not read."""
        found = self._read.get(name)
        if found is None and self._further is not None and name not in self._signature.parameters:
            return self._read[self._further]
        return found


class Results:
    """The results of one task."""

    def __init__(self, fn: Callable[..., Any], task: str) -> None:
        self._fn = fn
        self.about = f"result of {task}"

    def forget(self) -> None:
        """Look at the annotation again: another type is registered."""
        self.__dict__.pop("are_read", None)

    @cached_property
    def annotation(self) -> Any:
        """What the function returns beside outcomes. Found when first needed, as for parameters."""
        return values.returned(function_of(self._fn))

    @cached_property
    def are_read(self) -> bool:
        """Whether they are read by the annotation."""
        return values.is_read(self.annotation)

    def text(self, result: Any, bytes_max: int) -> str:
        """The JSON text of a result; `ResultRejected` if it cannot be stored, `Misfit` if it would be read as another."""
        if not self.are_read:
            return self._json_text(result, bytes_max)
        text = result_text(result, self.about, bytes_max)
        try:
            read = self.read(values.as_stored(jsontext.decode(text)))
        except values.Misfit as error:
            raise values.Misfit(f"does not fit {values.name_of(self.annotation)}: {error}") from error
        if not values.is_same_kind(result, read, _INSIDE_READ):
            raise values.Misfit(f"{_arrives(result, read)}; annotate what the task returns")
        return text

    def _json_text(self, result: Any, bytes_max: int) -> str:
        """What nearly all jobs return is JSON, and small: that is found out with the fewest calls."""
        try:
            text = jsontext.encode(result, self.about)
        except JobRejected:
            return result_text(result, self.about, bytes_max, annotated=False)
        # A character has at most four bytes.
        return text if len(text) * 4 <= bytes_max else result_text(result, self.about, bytes_max, annotated=False)

    def read(self, stored: Any) -> Any:
        """A stored result as the annotation says, or `values.Misfit`."""
        return values.typed(stored, self.annotation)


def _arrives(value: Any, read: Any) -> str:
    kind, other, name = type(value).__name__, type(read).__name__, values.changed_field(value, read)
    if name is not None:
        how = f"with another value of {name}"
    elif isinstance(value, OrderedDict) and kind == other and value == dict(read):
        how = "in another order"
    elif isinstance(value, defaultdict) and kind == other and value.default_factory is not read.default_factory:
        how = "with another factory"
    elif isinstance(value, timedelta) and kind == other:
        how = f"as {read}"
    else:
        how = "with other types inside" if kind == other else f"as a {other}"
    return f"is a {kind} and would arrive {how}"


def function_of(fn: Any) -> Any:
    """What has the annotations: of a partial its function, of an object its `__call__`."""
    if isinstance(fn, partial):
        return function_of(fn.func)
    return fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
