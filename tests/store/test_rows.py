"""A row is read by the names of its columns: the fields of the class that it becomes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import faultline.store
from faultline.store.rows import Column, RowOf, as_json, value, values

STORE = Path(faultline.store.__file__).parent


@dataclass(frozen=True)
class Fruit:
    name: str
    ripe: bool
    detail: object = None


class Basket(NamedTuple):
    owner: str


FRUIT = RowOf(Fruit, name="upper(f.name)", ripe=Column("f.age", lambda age: age > 3), detail=as_json("detail"))


def test_the_select_list_and_the_reading_come_from_the_fields() -> None:
    assert FRUIT.columns == "upper(f.name) as name, f.age as ripe, detail::text as detail"
    assert FRUIT.many([("FIG", 5, '{"n": 1}')]) == [Fruit("FIG", ripe=True, detail={"n": 1})]
    assert RowOf(Basket).columns == "owner"


def test_a_field_can_be_done_without() -> None:
    assert RowOf(Fruit, ("ripe", "detail")).columns == "name"


def test_an_expression_for_a_field_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="Fruit has no field colour"):
        RowOf(Fruit, colour="'red'")


def test_a_row_can_hold_two_values() -> None:
    row = ("ada", "FIG", 1, None)

    assert RowOf(Basket).one([row]) == Basket("ada")
    assert FRUIT.many([row], behind=RowOf(Basket)) == [Fruit("FIG", ripe=False)]


def test_json_that_python_cannot_read_is_shown_as_its_text() -> None:
    assert FRUIT.one([("FIG", 1, "[1e999]")]).detail == "[1e999]"


def test_the_first_of_no_rows_is_none() -> None:
    assert FRUIT.first([]) is None


def test_one_value_is_read_by_itself() -> None:
    assert value([(7,)]) == 7
    assert values([(7,), (8,)]) == [7, 8]
    with pytest.raises(ValueError, match="too many values"):
        value([(7, 8)])


def test_no_verb_and_no_read_takes_a_column_by_its_position() -> None:
    by_position = re.compile(r"\brows?\[-?\d|\brows?\[-?\d*:-?\d|\bin rows[:\]})]")
    found = [
        f"{path.relative_to(STORE)}: {line.strip()}"
        for folder in ("verbs", "reads")
        for path in sorted((STORE / folder).glob("*.py"))
        for line in path.read_text().splitlines()
        if by_position.search(line) and "rows[::-1]" not in line
    ]

    # What a named tuple or a lease is made of, as a whole.
    assert [line for line in found if "(*row, owner)" not in line] == []
