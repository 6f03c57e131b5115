from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from faultline.core.errors import JobRejected, UnreadableJson
from faultline.store import jsontext

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"x": float("nan")}, "x is nan, which JSON cannot represent"),
        ({"x": [1, {"y": float("inf")}]}, r"x\[1\].y is inf"),
        ({"x": "a\x00b"}, "x contains a NUL character"),
        ({"a\x00": 1}, "NUL character"),
        ({"x": "\ud800"}, "half a surrogate pair"),
        ({"x": 2**70}, "more than 64 bits"),
        ({"x": {1, 2}}, "x is a set"),
        ({"x": b"bytes"}, "x is a bytes"),
        ({"x": Decimal("1.5")}, "x is a Decimal"),
        ({"x": datetime.now(UTC)}, "x is a datetime"),
        ({"x": {1: 2}}, "x has the key 1, which is not text"),
        ({"x": object()}, "x is an object"),
        (CYCLE, "nested too deeply or contains itself"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(value: Any, fault: str) -> None:
    with pytest.raises(JobRejected, match=fault):
        jsontext.encode(value, "arguments of t")


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "null", "\\u0000", {"a": [None, "é", {}]}, 2**63, -(2**63), [[], ""]])
def test_what_is_json_comes_back_as_it_was(value: Any) -> None:
    assert jsontext.decode(jsontext.encode(value, "value")) == value


@pytest.mark.parametrize("bits", [62, 63, 64, 65, 70, 200, 1024, 14_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_comes_back_exactly_whatever_its_size(bits: int, sign: int) -> None:
    for number in (sign * (2**bits - 1), sign * 2**bits, sign * (2**bits + 1)):
        for value in (number, {"a": [number, (number,), "x"]}, {"a": 1.5, "b": number, "c": "é"}):
            back = jsontext.decode_args(jsontext.encode_args(value, "value"))
            assert repr(back) == repr(value).replace("(", "[").replace(",)", "]")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"x": 2**70, "y": {1, 2}}, "y is a set"),
        ({"x": 10**5000}, "x is an integer of more than 64 bits; pass it as text"),
        ({"x": 2**70, "y": float("nan")}, "y is nan"),
        ({"y": CYCLE, "x": 2**70}, "contains itself"),
    ],
)
def test_arguments_that_are_no_json_are_refused_with_the_place(value: Any, fault: str) -> None:
    with pytest.raises(JobRejected, match=fault):
        jsontext.encode_args(value, "arguments of t")


def test_what_stands_beside_a_long_integer_is_written_as_without_it() -> None:
    chosen = UUID(int=5)

    assert jsontext.decode_args(jsontext.encode_args({"n": 2**70, "u": chosen}, "value")) == {"n": 2**70, "u": str(chosen)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1e400}', "infinity"),
        ('{"a": 1e400, "b": 12345678901234567890123}', "a is inf"),
        ('{"a": NaN}', "char 6"),
        ('{"a": NaN, "b": 12345678901234567890123}', "a is nan"),
        ('{"a": -Infinity, "b": 12345678901234567890123}', "a is -inf"),
        ('{"a": "\\ud800", "b": 12345678901234567890123}', "half a surrogate pair"),
        (f'{{"a": {"9" * 5000}}}', "4300 digits"),
        (f'{{"a": {"[" * 5000}{"]" * 5000}}}', "depth"),
        (f'{{"a": {"[" * 5000}{"]" * 5000}, "b": 12345678901234567890123}}', "recursion"),
        ("{", "char 1"),
    ],
)
def test_what_python_cannot_hold_is_told_with_the_reason(text: str, fault: str) -> None:
    with pytest.raises(UnreadableJson, match=fault):
        jsontext.decode_args(text)
