"""Rows as values. The select list and the reading of a row follow from the fields of one class, so that a new column is a
new field, and no two columns can be swapped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from faultline.core.errors import UnreadableJson
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Json
    from faultline.store.statement import Rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """The expression that a field is read from, and how to convert it."""

    sql: str
    read: Callable[[Any], Any]


class RowOf(Generic[T]):
    """Rows as values of a dataclass or a named tuple.

    `columns` is the select list: for each field the column of its name, unless another expression is given for it; fields
    named in `but` are left out. `RowOf(Step, result="result::text")` selects `name, …, result::text as result`.
    """

    def __init__(self, kind: type[T], but: tuple[str, ...] = (), /, **given: str | Column) -> None:
        self.names = tuple(name for name in names_of(kind) if name not in but)
        unknown = sorted(given.keys() - set(self.names))
        if unknown:
            raise TypeError(f"{kind.__name__} has no field {', '.join(unknown)}")
        self._kind = kind
        found = [(name, given.get(name, name)) for name in self.names]
        self.columns = ", ".join(_selected(name, column) for name, column in found)
        self._reads = [(index, column.read) for index, (_, column) in enumerate(found) if isinstance(column, Column)]

    def many(self, rows: Rows, *, behind: RowOf[Any] | None = None) -> list[T]:
        """Every row. If a row contains values of two classes, the columns of the second are `behind` those of the first."""
        start = 0 if behind is None else len(behind.names)
        if rows and len(rows[0]) != len(self.names):
            rows = [row[start : start + len(self.names)] for row in rows]
        if not self._reads:
            return [self._kind(*row) for row in rows]
        return [self._kind(*self._values(row)) for row in rows]

    def one(self, rows: Rows) -> T:
        """The first row of a result that always has one."""
        return self.many(rows[:1])[0]

    def first(self, rows: Rows) -> T | None:
        return self.one(rows) if rows else None

    def _values(self, row: tuple[Any, ...]) -> list[Any]:
        values = list(row)
        for index, read in self._reads:
            values[index] = read(values[index])
        return values


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The parameters of this class, in order."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind) if field.init)
    names: tuple[str, ...] = kind._fields
    return names


def _selected(name: str, column: str | Column) -> str:
    expression = column if isinstance(column, str) else column.sql
    return name if expression == name else f"{expression} as {name}"


def as_json(column: str, decode: Callable[[str], Json] = jsontext.decode) -> Column:
    """A column of JSON. A value that Python cannot read becomes its text: one bad job must not hide the others."""

    def read(text: str | None) -> Json:
        if text is None:
            return None
        try:
            return decode(text)
        except UnreadableJson:
            return text

    return Column(f"{column}::text", read)


#: What is nested more deeply is shown as its text: whatever writes JSON recurses, and gives up far below what can be stored.
_SHOWN_DEPTH_MAX = 100
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def as_shown_json(column: str, decode: Callable[[str], Json] = jsontext.decode) -> Column:
    """The same for a value that is shown, not used."""
    plain = as_json(column, decode)

    def read(text: str | None) -> Json:
        return text if text is not None and _depth(text) > _SHOWN_DEPTH_MAX else plain.read(text)

    return Column(plain.sql, read)


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= _SHOWN_DEPTH_MAX:
        return 0
    deepest = depth = 0
    for found in _NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest


def value(rows: Rows) -> Any:
    """The only value of the only row."""
    [[found]] = rows
    return found


def values(rows: Rows) -> list[Any]:
    """The only value of each row."""
    return [found for (found,) in rows]
