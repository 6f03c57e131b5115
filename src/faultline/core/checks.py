"""Checks of what programs give: a mistake raises where it is made, and the message says what to write instead."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any

from faultline.core.bounds import FIRST_YEAR, LAST_YEAR, QUEUE_LENGTH_MAX
from faultline.core.errors import JobRejected

#: Characters that control a terminal, or hide or reorder text, for a class of a regular expression. The database has the
#: same: see is_unreadable.sql. PostgreSQL stores neither NUL nor half of a surrogate pair.
HIDING = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
_HIDING = re.compile(f"[{HIDING}\\ud800-\\udfff]")

Duration = float | timedelta  #: Seconds, or a `datetime.timedelta`.


def seconds(duration: Duration | None) -> float | None:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def in_words(number: float) -> str:
    """A number for people: 315,360,000 and not 3.1536e+08."""
    return f"{number:,.6f}".rstrip("0").rstrip(".") if abs(number) < 1e15 else f"{number:g}"  # noqa: PLR2004


def check_text(name: str, value: Any, length_max: int) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise JobRejected(f"{name} must be text of 1 to {length_max} characters, not {value!r:.60}")
    if len(value) > length_max:
        raise JobRejected(f"{name} has {len(value)} characters; at most {length_max} are allowed")
    if "\x00" in value:
        raise JobRejected(f"{name} contains a NUL character, which PostgreSQL cannot store")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise JobRejected(f"{name} contains half of a surrogate pair, which PostgreSQL cannot store: {value[:40]!r}")


def check_name(what: str, name: Any, length_max: int) -> None:
    """As `check_text`, but None is no name."""
    if name is None:
        raise JobRejected(f"{what} must be text of 1 to {length_max} characters, not None")
    check_text(what, name, length_max)


def hides(name: str) -> bool:
    """Whether it has characters that control a terminal, or hide or reorder text."""
    return not name.isprintable() and _HIDING.search(name) is not None  # the first is quick, and knows more of them


def check_readable(what: str, name: str, *, trimmed: bool = False) -> None:
    """People read and type names, so what they cannot see is refused here and in the database."""
    if hides(name):
        raise JobRejected(f"{what} contains control characters, or half of a surrogate pair: {name[:40]!r}")
    if trimmed and name != name.strip():
        raise JobRejected(f"{what} begins or ends with white space: {name[:40]!r}")


def check_queue(name: Any) -> None:
    check_text("queue", name, QUEUE_LENGTH_MAX)
    if name is not None:
        check_readable("queue", name, trimmed=True)


def check_seconds(name: str, value: Any, least: float, most: float, or_else: str = "") -> None:
    """`or_else`: what it may be instead, for the message."""
    if value is None:
        return
    number = seconds(value)
    if not is_finite(number):
        raise JobRejected(f"{name} must be a number of seconds or a timedelta{or_else}, not {value!r:.60}")
    if number is not None and not least <= number <= most:
        raise JobRejected(f"{name} must be between {in_words(least)} and {in_words(most)} seconds, not {in_words(number)}")


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise JobRejected(f"{name} must be a whole number from {least} to {most}, not {value!r:.60}")


def check_moment(name: str, value: Any) -> None:
    if not isinstance(value, datetime):
        raise JobRejected(f"{name} must be a datetime with a time zone, not {value!r:.60}")
    if value.utcoffset() is None:
        raise JobRejected(
            f"{name} {value.isoformat()} has no time zone; add one: datetime(…, tzinfo=UTC), or datetime.now(UTC) + …"
        )
    if not FIRST_YEAR <= value.year < LAST_YEAR:
        raise JobRejected(f"{name} {value.isoformat()} is outside the years {FIRST_YEAR} to {LAST_YEAR - 1}")


def is_finite(number: Any) -> bool:
    """Whether it is a number that PostgreSQL can compare: neither NaN, nor infinite, nor a truth value."""
    try:
        return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    except OverflowError:  # an integer too large for a float
        return False
