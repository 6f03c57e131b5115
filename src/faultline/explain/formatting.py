"""Times, durations and numbers for people. Times are the database's, in UTC."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline.core.model import Json

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
_BYTES = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000.0
NOTHING = "\N{EN DASH}"


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()


def duration(seconds: float | timedelta | None) -> str:
    """With two significant parts: `4 ms`, `1.3 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds is None:
        return NOTHING
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    seconds = abs(seconds)
    if seconds < 0.9995:  # noqa: PLR2004 - rounds to a second
        exact = seconds * 1000
        return "0 ms" if exact == 0 else f"{exact:.1f} ms" if exact < 1 else f"{exact:.0f} ms"
    if seconds < 9.95:  # noqa: PLR2004 - rounds to ten
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for number, (size, name) in enumerate(_UNITS):
        if whole >= size:
            below, below_name = (*_UNITS, (1, "s"))[number + 1]
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"


def span(seconds: float) -> str:
    """Short: 85 ms, 3.2 s, 40 s, 12 min, 5 h, 3 d."""
    for limit, text in (
        (0.0995, f"{seconds * 1000:.0f} ms"),
        (9.95, f"{seconds:.1f} s"),
        (99.5, f"{seconds:.0f} s"),
        (5400, f"{seconds / 60:.0f} min"),
        (172800, f"{seconds / 3600:.0f} h"),
    ):
        if abs(seconds) < limit:
            return text
    return f"{seconds / 86400:.0f} d"


def number_of(things: int, one: str, many: str) -> str:
    """`1 job waits`, `1,200 jobs wait`."""
    return f"{things:,} {one if things == 1 else many}"


def ago(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "never"
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(seconds)}"


def clock(at: datetime | None, now: datetime | None = None) -> str:
    """The time of day; with the date if that is not the day of `now`."""
    if at is None:
        return NOTHING
    at = at.astimezone(UTC)
    if now is not None and at.date() != now.astimezone(UTC).date():
        return f"{at:%Y-%m-%d %H:%M:%S}"
    return f"{at:%H:%M:%S}"


def moment(at: datetime | None) -> str:
    """To the millisecond, as in a log."""
    return NOTHING if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def stamp(at: datetime) -> str:
    """Date and time of day."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def count(number: float | None) -> str:
    return NOTHING if number is None else f"{number:,.0f}"


def times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def short(number: float | None) -> str:
    """Short: `940`, `12.4 k`, `1.2 M`."""
    if number is None:
        return NOTHING
    for size, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            divisor = 1e3 if name == "k" else size
            return f"{number / divisor:.1f} {name}"
    return f"{number:,.0f}"


def rate(per_second: float | None) -> str:
    """Per second; below ten with a decimal, below one per minute."""
    if per_second is None:
        return NOTHING
    if 0 < per_second < 0.95:  # noqa: PLR2004 - rounds to one
        return f"{per_second * 60:.1f}/min"
    return f"{per_second:.1f}/s" if 0 < per_second < 9.95 else f"{per_second:,.0f}/s"  # noqa: PLR2004 - rounds to ten


def size(count: float | None) -> str:
    if count is None:
        return NOTHING
    for name in _BYTES:
        if abs(count) < _THOUSAND or name == _BYTES[-1]:
            return f"{count:,.0f} {name}" if name == "B" or count >= 100 else f"{count:.1f} {name}"  # noqa: PLR2004
        count /= _THOUSAND
    raise AssertionError("the largest unit takes all")


def pretty(value: Json) -> str:
    """JSON on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def words(name: str | None) -> str:
    """A name of the protocol as words."""
    return (name or "").replace("_", " ")


def given(key: str) -> str:
    """An idempotency key as the caller gave it. Over HTTP it is stored with the API key's id in front."""
    return re.sub(r"^http:(?:loopback|[0-9a-f]{32}):", "", key)


def headline(error: str | None) -> str:
    """The first line of an error, which names it."""
    lines = (error or "").strip().splitlines()
    return lines[0] if lines else ""
