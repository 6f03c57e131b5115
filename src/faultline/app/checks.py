"""Checks of what programs give: a mistake raises where it is made."""

from __future__ import annotations

import math
from datetime import timedelta

from faultline.core.errors import JobRejected

Duration = float | timedelta  #: Seconds, or a `datetime.timedelta`.


def seconds(duration: Duration | None) -> float | None:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def check_text(name: str, value: str | None, length_max: int) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:  # type: ignore[redundant-expr]  # callers without a type checker
        raise JobRejected(f"{name} must be text of 1 to {length_max} characters, not {value!r}")
    if len(value) > length_max:
        raise JobRejected(f"{name} has {len(value)} characters; at most {length_max} are allowed")
    if "\x00" in value:
        raise JobRejected(f"{name} contains a NUL character, which PostgreSQL cannot store")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise JobRejected(f"{name} contains half of a surrogate pair, which PostgreSQL cannot store: {value[:40]!r}")


def check_seconds(name: str, value: Duration | None, least: float, most: float) -> None:
    if value is None:
        return
    number = seconds(value)
    if not isinstance(number, int | float) or isinstance(number, bool) or not _is_finite(number):
        raise JobRejected(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not least <= number <= most:
        raise JobRejected(f"{name} must be between {least:g} and {most:g} seconds, not {number:g}")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer too large for a float
        return False
