"""What is read is what was stored: nothing is guessed, dropped or converted in silence."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypedDict

import pytest

from faultline import values


@dataclass
class Approve:
    by: str


@dataclass
class Reject:
    by: str
    reason: str


@dataclass
class Allow:
    by: str


@dataclass
class Defer:
    by: str
    days: int = 1


class Note(TypedDict):
    by: str


@pytest.mark.parametrize("union", [Approve | Reject, Reject | Approve])
def test_a_union_of_dataclasses_takes_the_one_that_fits_exactly(union: Any) -> None:
    assert values.typed({"by": "bob"}, union) == Approve("bob")
    assert values.typed({"by": "bob", "reason": "no"}, union) == Reject("bob", "no")
    assert values.typed([{"by": "bob", "reason": "no"}], list[union]) == [Reject("bob", "no")]


def test_a_union_takes_what_would_be_stored_as_the_same_value() -> None:
    assert values.typed({"by": "bob"}, Defer | Approve) == Approve("bob")
    assert values.typed({"by": "bob", "days": 1}, Defer | Approve) == Defer("bob")
    assert values.typed([], list[int] | list[str]) == []
    assert values.typed(1, int | float) == 1


def test_a_class_of_a_union_that_cannot_be_read_takes_no_value_from_one_that_can() -> None:
    assert values.typed({"by": "bob"}, Approve | Fraction) == Approve("bob")
    assert values.typed({"by": 3}, Approve | Fraction) == {"by": 3}


@pytest.mark.parametrize("union", [Approve | Allow, Allow | Approve, list[Approve] | list[Allow]])
def test_a_value_that_fits_two_classes_is_not_guessed(union: Any) -> None:
    value = [{"by": "bob"}] if "list" in str(union) else {"by": "bob"}

    with pytest.raises(values.Misfit, match="nothing in it says which"):
        values.typed(value, union)


@pytest.mark.parametrize(
    ("value", "annotation", "why"),
    [
        ({"by": "bob", "reason": "no"}, Approve, "has no field reason"),
        ({"reason": "no"}, Reject, "lacks the field by"),
        ({"by": 3}, Approve, "field by: 3 is not str"),
        ({"by": "bob", "reason": "no"}, Note, "has no field reason"),
        ({}, Note, "lacks the field by"),
    ],
)
def test_unknown_and_missing_fields_are_misfits(value: Any, annotation: Any, why: str) -> None:
    with pytest.raises(values.Misfit, match=why):
        values.typed(value, annotation)


def test_a_field_with_a_default_may_be_missing() -> None:
    assert values.typed({"by": "bob"}, Defer) == Defer("bob", 1)


def test_a_class_inside_a_result_is_compared_too() -> None:
    assert values.is_same_kind([Approve("bob")], [Approve("bob")])
    assert not values.is_same_kind([Allow("bob")], [Approve("bob")])
    assert not values.is_same_kind({"it": Allow("bob")}, {"it": {"by": "bob"}})
