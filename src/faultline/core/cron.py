"""Cron lines with a time zone: when they tick, computed from a moment in UTC, so that a position that was stored is enough.

cronsim reads the lines and knows which days match. The moments of a day are computed here, because cronsim loses ticks where
clocks change by half an hour. Daylight saving time as Debian's cron has it: a fixed time that is left out comes right after
the gap, one that comes twice counts once; where minute or hour begin with `*`, every minute of real time counts whose wall
clock matches.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from faultline.core.errors import JobRejected

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_LENGTH_MAX = 200
#: A 29 February on a certain weekday comes again within 40 years, also around 2100.
_YEARS = 41
_FIELDS = (Field.MINUTE, Field.HOUR, Field.DAY, Field.MONTH, Field.DOW)
_NAMES = ("a minute", "an hour", "a day of the month", "a month", "a day of the week")
_RANGES = (
    "0 to 59",
    "0 to 23",
    "1 to 31, L (the last day) or LW (the last working day)",
    "1 to 12 or jan to dec",
    "0 to 7 or sun to sat, 5L (the last Friday) or mon#2 (the second Monday)",
)
#: The first and the last of each field, as numbers and as names.
_ENDS = (("0", "59"), ("0", "23"), ("1", "31"), ("1", "12"), ("0", "6"))
_NAMED_ENDS = (*_ENDS[:3], ("jan", "dec"), ("sun", "sat"))
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
_AROUND = tuple(timedelta(hours=hours) for hours in (-3, 6, 12, 18, 24, 27))
#: Names of files beside the time zones: each host has its own, or none.
_OF_THE_HOST = frozenset({"localtime", "posixrules", "factory"})
_OTHER_FILES = ("/", "posix/", "right/")
#: Days around a change of the clocks whose ticks a line remembers.
_CHANGES_MAX = 100


class CronLine:
    """A cron line of five fields in a time zone. Raises `JobRejected`, which names the position of what is wrong."""

    def __init__(self, line: str, tz: str = "UTC") -> None:
        self.line = line
        self.zone = zone(tz)
        fields = _checked(line)
        try:
            self._days = CronSim(" ".join(fields), datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:  # each field makes sense, but not together: a 30 February
            position = list(re.finditer(r"\S+", line))[2].start() + 1
            raise JobRejected(f'the cron line "{line}" never comes: no year has such a day (position {position})') from error
        #: Its times of a day, in seconds since midnight.
        self._seconds = sorted(hour * 3600 + minute * 60 for hour in self._days.hours for minute in self._days.minutes)
        self._changes: dict[date, list[datetime]] = {}
        self._is_fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
        if self.after(datetime(2000, 1, 1, tzinfo=UTC)) is None:
            raise JobRejected(f'the cron line "{line}" never comes: no year has such a day')

    def after(self, moment: datetime) -> datetime | None:
        """The first tick after this moment, in UTC."""
        return next(self.ticks(moment, moment + timedelta(days=366 * _YEARS)), None)

    def ticks(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks after the first and up to the second moment, in UTC."""
        last = after
        # From the day before: what falls into a gap around midnight comes on the next day.
        for day in self._matching(_local(after, self.zone) - _DAY, _local(until, self.zone)):
            begins = self._begins(day)
            if begins is None:
                moments = [tick for tick in self._around_a_change(day) if last < tick <= until]
            else:
                seconds = self._seconds[self._up_to(last, begins) : self._up_to(until, begins)]
                moments = [begins + timedelta(seconds=one) for one in seconds]
            yield from moments
            last = max(last, *moments) if moments else last

    def count(self, after: datetime, until: datetime) -> int:
        """How many ticks there are after the first and up to the second moment. Fast, for a century as well."""
        found, last = 0, after
        for day in self._matching(_local(after, self.zone) - _DAY, _local(until, self.zone)):
            begins = self._begins(day)
            if begins is None:
                moments = [tick for tick in self._around_a_change(day) if last < tick <= until]
                found += len(moments)
                last = max(last, *moments) if moments else last
            else:
                found += max(0, self._up_to(until, begins) - self._up_to(last, begins))
        return found

    def _up_to(self, moment: datetime, begins: datetime) -> int:
        """How many ticks a day that begins then has up to the moment."""
        return bisect_right(self._seconds, (moment - begins).total_seconds())

    def _matching(self, first: date, last: date) -> Iterator[date]:
        day, months = first, self._days.months
        while day <= last:
            if day.month in months:
                if self._days.match_day(day):
                    yield day
                if day == date.max:
                    return
                day += _DAY
            else:
                if day.year == date.max.year and day.month == 12:  # noqa: PLR2004
                    return
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)

    def _begins(self, day: date) -> datetime | None:
        """When a day begins, in UTC, on which the clocks stay as they are, also in some hours around it. Otherwise None."""
        start = datetime(day.year, day.month, day.day, tzinfo=self.zone)
        offset = start.utcoffset()
        if any((start + hours).utcoffset() != offset for hours in _AROUND):
            return None
        return start.astimezone(UTC)

    def _around_a_change(self, day: date) -> list[datetime]:
        """The ticks of a day that matches, on which the clocks change, in order."""
        if day not in self._changes:
            if len(self._changes) >= _CHANGES_MAX:
                self._changes.clear()
            if self._is_fixed:
                start = datetime(day.year, day.month, day.day, tzinfo=self.zone)
                walls = [start.replace(hour=one // 3600, minute=one % 3600 // 60) for one in self._seconds]
                self._changes[day] = sorted({self._existing(wall) for wall in walls})
            else:
                self._changes[day] = list(self._real_minutes(day))
        return self._changes[day]

    def _existing(self, wall: datetime) -> datetime:
        """When the wall clock shows this time, or the first one after the gap that it is in."""
        while True:
            moment = wall.astimezone(UTC)
            if moment.astimezone(self.zone).replace(tzinfo=None) == wall.replace(tzinfo=None):
                return moment
            wall += _MINUTE

    def _real_minutes(self, day: date) -> Iterator[datetime]:
        wanted = set(self._seconds)
        moment = datetime(day.year, day.month, day.day, tzinfo=self.zone).astimezone(UTC)
        while (wall := moment.astimezone(self.zone)).date() <= day:
            # The clock may go back over midnight: minutes of the day before belong to that one.
            if wall.date() == day and wall.hour * 3600 + wall.minute * 60 in wanted:
                yield moment
            moment += _MINUTE


@lru_cache(maxsize=1024)
def cron_line(line: str, tz: str = "UTC") -> CronLine:
    return CronLine(line, tz)


def days_are_either(line: str) -> bool:
    """Whether a line names days of the month and of the week, so that a day on which either matches counts."""
    days = line.split()[2::2]
    return all(not day.startswith("*") for day in days)


def zone(name: str) -> ZoneInfo:
    """The time zone of this name."""
    if not isinstance(name, str):  # callers without a type checker
        raise JobRejected(f'tz must be the name of a time zone, such as "Europe/Berlin", or a ZoneInfo, not {name!r:.60}')
    if not name or name.casefold() in _OF_THE_HOST or name.casefold().startswith(_OTHER_FILES):
        raise JobRejected(
            f'the time zone "{name:.60}" is whatever each host says; use a name such as "Europe/Berlin" or "UTC"'
        )
    try:
        return ZoneInfo(name)
    except Exception as error:
        meant = sorted(known for known in available_timezones() if _last_part(known) == _last_part(name))
        use = f'did you mean "{meant[0]}"?' if meant else 'use a name such as "Europe/Berlin".'
        raise JobRejected(f'there is no time zone "{name:.60}"; {use} A new one needs a newer package tzdata') from error


def _last_part(name: str) -> str:
    """Of the name of a time zone: the city. People leave out the continent, and forget capitals."""
    return name.casefold().replace(" ", "_").rsplit("/", 1)[-1]


def _local(moment: datetime, tz: ZoneInfo) -> date:
    return moment.astimezone(tz).date()


def check_line(line: object) -> None:
    """Whether it is text at all: a list could not even be looked up among the known lines."""
    if not isinstance(line, str) or len(line) > LINE_LENGTH_MAX:
        raise JobRejected(f"a cron line is text of at most {LINE_LENGTH_MAX} characters, not {line!r:.80}")


def _checked(line: str) -> list[str]:
    """The five fields of a line."""
    check_line(line)
    found = list(re.finditer(r"\S+", line))
    if len(found) != len(_FIELDS):
        more = (
            ". A sixth field for seconds is not supported: use every= for what comes more often than once a minute"
            if len(found) == len(_FIELDS) + 1
            else ". Write out what @daily and the like stand for"
            if line.lstrip().startswith("@")
            else ""
        )
        raise JobRejected(
            f'the cron line "{line}" has {len(found)} field{"s" * (len(found) != 1)} instead of five:'
            f" minute, hour, day of the month, month, day of the week{more}"
        )
    for index, field in enumerate(found):
        _check_field(line, index, field)
    return [field[0].upper() for field in found]


def _check_field(line: str, index: int, field: re.Match[str]) -> None:
    position = field.start()
    for term in field[0].split(","):
        try:
            _FIELDS[index].parse(term.upper() if term.isascii() else "")
        except Exception as error:
            may = f"It may be {_RANGES[index]}, a list, a range such as 1-5, or a step such as */2"
            raise JobRejected(
                f'the cron line "{line}" is wrong at position {position + 1}: "{term}" is not {_NAMES[index]}.'
                f" {_wrapped(index, term) or may}"
            ) from error
        _check_step(line, index, term, position)
        position += len(term) + 1


def _check_step(line: str, index: int, term: str, position: int) -> None:
    """Refuse what cronsim reads as open to the end: 5/10 means that, and 5-5/10 does not. And */90, which is every hour."""
    span, slash, step = term.partition("/")
    if not slash or span.isdigit():
        return
    values = len(_FIELDS[index].parse(span.upper()))
    if span == "*" and int(step) > values:
        raise JobRejected(
            f'the cron line "{line}" is wrong at position {position + 1}: "{term}" steps over all {values} values,'
            " which begin anew each time; use every= for such a time"
        )
    if values > 1:
        return
    first, dash, _ = span.partition("-")
    if not dash and not span.upper().startswith("L"):
        return  # by its name: mon/2
    last = (_ENDS if first.isdigit() else _NAMED_ENDS)[index][1]
    # Sunday may be written as 7, which is beyond the last day of a week.
    is_below = not first.isdigit() or int(first) < int(last)
    several = f', or "{first}-{last}/{step}"' if dash and is_below and first.lower() != last else ""
    raise JobRejected(
        f'the cron line "{line}" is wrong at position {position + 1}: "{term}" has a step and one value;'
        f' write "{first}"{several}'
    )


def _wrapped(index: int, term: str) -> str | None:
    """What to write for a range that goes over the end, such as 22-2 or fri-mon. None: it is wrong for another reason."""
    ends = re.fullmatch(r"(\w+)-(\w+)(/\d+)?", term)
    if ends is None:
        return None
    try:
        first, last = (
            min(one for one in _FIELDS[index].parse(end.upper()) if isinstance(one, int)) for end in ends.group(1, 2)
        )
    except Exception:  # noqa: BLE001 - one of the ends is wrong by itself
        return None
    if first <= last:
        return None
    least, most = _ENDS[index] if ends[1].isdigit() else _NAMED_ENDS[index]
    instead = "" if ends[3] else f': write "{ends[1]}-{most},{least}-{ends[2]}"'
    return f"A range goes up, and not over the end{instead}"
