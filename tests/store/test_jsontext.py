from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from faultline.core.errors import JobRejected
from faultline.store import jsontext

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"x": float("nan")}, "x is nan, which JSON cannot say"),
        ({"x": [1, {"y": float("inf")}]}, r"x\[1\].y is inf"),
        ({"x": "a\x00b"}, "x holds a NUL character"),
        ({"a\x00": 1}, "NUL character"),
        ({"x": "\ud800"}, "half a surrogate pair"),
        ({"x": 2**70}, "more than 64 bits"),
        ({"x": {1, 2}}, "x is a set"),
        ({"x": b"bytes"}, "x is a bytes"),
        ({"x": Decimal("1.5")}, "x is a Decimal"),
        ({"x": datetime.now(UTC)}, "x is a datetime"),
        ({"x": {1: 2}}, "x has the key 1, which is no text"),
        ({"x": object()}, "x is a object"),
        (CYCLE, "nested too deeply, or contains itself"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(value: Any, fault: str) -> None:
    with pytest.raises(JobRejected, match=fault):
        jsontext.encode(value, "arguments of t")


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "null", "\\u0000", {"a": [None, "é", {}]}, 2**63, -(2**63), [[], ""]])
def test_what_is_json_comes_back_as_it_was(value: Any) -> None:
    assert jsontext.decode(jsontext.encode(value, "value")) == value
