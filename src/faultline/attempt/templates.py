"""Texts over a task's arguments: `tenant-{tenant_id}` as a group, `doc:{doc.id}` as a unique key.

Checked where the task is decorated, filled wherever a job of it is made. What is filled in is what is stored of an argument:
so the database, which fills them for those who publish, writes the same text.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from faultline import values
from faultline.core.errors import ConfigError, JobRejected

if TYPE_CHECKING:
    from faultline.core.model import Json

_MISSING: Any = object()


class _Part(NamedTuple):
    """A piece of text, then the argument behind it: its name, and the fields to follow inside it."""

    before: str
    path: tuple[str, ...]
    default: Any


class Template:
    """A text with names of arguments in braces, as an f-string has them: `{{` and `}}` are braces.

    :param text: `tenant-{tenant_id}`; a field of an argument by a dot: `{order.id}`.
    :param signature: Of the task, without its `job`.
    :param about: What it is for messages: `the group of task mail.send`.
    """

    __slots__ = ("_about", "_parts", "text")

    def __init__(self, text: str, signature: inspect.Signature, about: str = "the template") -> None:
        if not isinstance(text, str) or not text:  # type: ignore[redundant-expr]  # callers without a type checker
            raise ConfigError(f"{about} must be text, such as 'tenant-{{tenant_id}}', not {text!r}")
        self.text = text
        self._about = about
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(f"{about}, {text!r}: {error}; write {{{{ and }}}} for braces") from error
        self._parts = [self._part(signature, *piece) for piece in pieces]

    def __repr__(self) -> str:
        return f"<Template {self.text!r}>"

    @property
    def names(self) -> list[str]:
        """The arguments that it names."""
        return [part.path[0] for part in self._parts if part.path]

    def fill(self, args: Mapping[str, Any]) -> str:
        """The text for these arguments; `JobRejected` if one is missing, None, or neither text nor a number.

        :param args: By name, as they are given to the function. Those that are left out have their defaults.
        """
        return "".join([part.before + (self._filled(part, args) if part.path else "") for part in self._parts])

    def stored(self) -> Json:
        """As the database has it, which fills it with `faultline.fill_template`."""
        return [
            {"text": part.before}
            | ({"path": list(part.path)} if part.path else {})
            | ({"default": _text(part.default)} if part.path and _text(part.default) is not None else {})
            for part in self._parts
        ]

    def _part(
        self, signature: inspect.Signature, before: str, field: str | None, spec: str | None, conversion: str | None
    ) -> _Part:
        if field is None:
            return _Part(before, (), _MISSING)
        path = tuple(field.split("."))
        if not all(name.isidentifier() for name in path) or spec or conversion:
            raise ConfigError(
                f"{self._about}, {self.text!r}: {{{field}}} must be the name of an argument, without a format; "
                "a field of it is written {argument.field}"
            )
        parameter = signature.parameters.get(path[0])
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())
        if (parameter is None and not takes_any) or (parameter is not None and parameter.kind is parameter.VAR_KEYWORD):
            known = ", ".join(signature.parameters) or "none"
            raise ConfigError(f"{self._about}, {self.text!r}, names {path[0]}, which is not an argument; there are: {known}")
        if parameter is None or parameter.default is inspect.Parameter.empty:
            return _Part(before, path, _MISSING)
        return _Part(before, path, _inside(parameter.default, path[1:]))

    def _filled(self, part: _Part, args: Mapping[str, Any]) -> str:
        name, *inside = part.path
        value = _inside(args[name], inside) if name in args else part.default
        if type(value) is str:
            return value
        text = _text(value)
        if text is None:
            what = "is missing" if value is _MISSING else f"is {value!r:.60}"
            raise JobRejected(f"{self._about}, {self.text!r}: {'.'.join(part.path)} {what}; it must be text or a number")
        return text


def _inside(value: Any, path: tuple[str, ...] | list[str]) -> Any:
    for name in path:
        fields = values.plain(value)
        value = fields.get(name, _MISSING) if isinstance(fields, Mapping) else _MISSING
    return value


def _text(value: Any) -> str | None:
    """A value as JSON's text has it; None if it is neither text nor a number nor true or false."""
    found = values.plain(value, annotated=False)
    if isinstance(found, str):
        return found
    if not isinstance(found, int | float):  # True and False are ints
        return None
    try:
        return orjson.dumps(found).decode()
    except TypeError:  # an integer of more than 64 bits
        return str(found)
