"""Cron lines against brute force: every minute of real time, or every time of the wall clock, looked at one by one."""

from __future__ import annotations

import calendar
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from faultline import JobRejected
from faultline.app.schedules import _rule
from faultline.core.cron import CronLine
from faultline.core.schedules import Missed, Rule, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ZONES = (
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo", "Antarctica/Troll",
    "Africa/Casablanca", "America/Sao_Paulo", "Asia/Tehran", "America/Havana", "Asia/Beirut", "Pacific/Chatham",
)  # fmt: skip
LINES = (
    "30 2 * * *", "0 0 * * *", "15 0-3 * * *", "0,30 1,2,3 * * *", "*/15 * * * *", "7 * * * *", "*/20 0-4 * * *",
    "0 */2 * * *", "0 */5 * * *", "0 0 31 * *", "0 0 29 2 *", "0 3 L * *", "0 3 LW * *", "30 2 * * sun#2", "0 2 * * 5L",
    "0 0 13 * fri", "0 0 */2 * mon", "10 1 1-7 * */3", "59 23 28-31 * *", "*/30 2 * * *",
)  # fmt: skip
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


@cache
def numbers(text: str, least: int, most: int, names: tuple[str, ...] = ()) -> set[int]:
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = least, most
        else:
            begin, _, end = span.partition("-")
            first = names.index(begin) if begin in names else int(begin)
            last = (names.index(end) if end in names else int(end)) if end else most if step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def matching_days(days: str, months: str, weekdays: str) -> Callable[[date], bool]:
    def by_day(day: date) -> bool:
        last = calendar.monthrange(day.year, day.month)[1]
        if days == "L":
            return day.day == last
        if days == "LW":
            working = date(day.year, day.month, last)
            while working.weekday() > 4:
                working -= DAY
            return day == working
        return day.day in numbers(days, 1, 31)

    def by_weekday(day: date) -> bool:
        number = (day.weekday() + 1) % 7
        if "#" in weekdays:
            name, _, which = weekdays.partition("#")
            return number == DAYS.index(name) and (day.day - 1) // 7 + 1 == int(which)
        if weekdays.endswith("L"):
            return number == int(weekdays[:-1]) and day.day + 7 > calendar.monthrange(day.year, day.month)[1]
        return number in {one % 7 for one in numbers(weekdays, 0, 7, DAYS)}

    both = days.startswith("*") or weekdays.startswith("*")

    def matches(day: date) -> bool:
        fits = (by_day(day) and by_weekday(day)) if both else (by_day(day) or by_weekday(day))
        return fits and day.month in numbers(months, 1, 12)

    return matches


def oracle(line: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    minute, hour, *rest = line.split()
    minutes, hours, matches = numbers(minute, 0, 59), numbers(hour, 0, 23), matching_days(*rest)
    found = set()
    if minute.startswith("*") or hour.startswith("*"):
        moment = start
        while moment < end:
            moment += MINUTE
            wall = moment.astimezone(zone)
            if wall.minute in minutes and wall.hour in hours and matches(wall.date()):
                found.add(moment)
        return sorted(found)
    day = start.astimezone(zone).date() - DAY
    while day <= end.astimezone(zone).date() + DAY:
        for one_hour in hours if matches(day) else ():
            for one_minute in minutes:
                plain = datetime(day.year, day.month, day.day, one_hour, one_minute)  # noqa: DTZ001 - the wall clock
                while True:
                    moment = plain.replace(tzinfo=zone).astimezone(UTC)
                    if moment.astimezone(zone).replace(tzinfo=None, fold=0) == plain:
                        break
                    plain += MINUTE
                if start < moment <= end:
                    found.add(moment)
        day += DAY
    return sorted(found)


def windows(line: str, zone: ZoneInfo, years: Sequence[int]) -> Iterator[tuple[datetime, datetime]]:
    spans = [(datetime(2011, 12, 20, tzinfo=UTC), datetime(2012, 1, 5, tzinfo=UTC))]
    for year in years:
        begins = [datetime(year, month, 1, tzinfo=UTC) for month in (2, 3, 9, 10)]
        spans += [(begin, begin + timedelta(days=45)) for begin in begins]
    minute, hour = line.split()[:2]
    for first, last in spans:
        if not (minute.startswith("*") or hour.startswith("*")):
            yield first, last
            continue
        # Minute by minute is dear: only days around changes of the clocks.
        days = [first + timedelta(days=number) for number in range((last - first).days)]
        changes = [
            day for day in days
            if len({(day + timedelta(hours=hours)).astimezone(zone).utcoffset() for hours in range(25)}) > 1
        ]  # fmt: skip
        yield from ((day - DAY, day + 2 * DAY) for day in changes[:2])


def from_position_to_position(line: str, tz: str, start: datetime, end: datetime) -> list[datetime]:
    """As the scheduler goes: each tick from the one that was stored."""
    rule, found, moment = CronLine(line, tz), [], start
    while (tick := rule.after(moment)) is not None and tick <= end:
        assert tick > moment
        found.append(tick)
        moment = tick
    return found


def compare(zones: Sequence[str], lines: Sequence[str], years: Sequence[int]) -> int:
    compared = 0
    for tz in zones:
        for line in lines:
            for start, end in windows(line, ZoneInfo(tz), years):
                wanted = oracle(line, ZoneInfo(tz), start, end)
                assert from_position_to_position(line, tz, start, end) == wanted, (tz, line, start)
                assert CronLine(line, tz).count(start, end) == len(wanted)
                compared += len(wanted)
    return compared


def test_27_ticks_are_those_of_brute_force() -> None:
    lines = ("30 2 * * *", "*/15 * * * *", "0 */5 * * *", "15 0-3 * * *", "0 3 LW * *")

    assert compare(("Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia"), lines, (2026,)) > 1000


@pytest.mark.long
def test_27_all_zones_and_lines_tick_as_brute_force_says() -> None:
    assert compare(ZONES, LINES, (2017, 2018, 2024, 2026, 2027, 2038, 2039)) > 200_000


def test_27_lord_howe_has_its_ticks_where_the_clocks_change_by_half_an_hour() -> None:
    howe = ZoneInfo("Australia/Lord_Howe")
    for day in (datetime(2026, 4, 5, tzinfo=howe), datetime(2026, 10, 4, tzinfo=howe)):
        start = day.astimezone(UTC) - MINUTE
        found = CronLine("0 */5 * * *", "Australia/Lord_Howe").ticks(start, start + timedelta(hours=23))
        assert [one.astimezone(howe).hour for one in found] == [0, 5, 10, 15, 20]


def test_fixed_times_come_after_the_gap_and_once_in_the_doubled_hour() -> None:
    line = CronLine("30 2 * * *", "Europe/Berlin")
    spring, autumn = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)

    assert line.after(spring) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert list(line.ticks(autumn, autumn + 2 * DAY)) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
    ]  # fmt: skip


def test_27_the_next_tick_is_never_in_the_past() -> None:
    # Set in the second of the doubled hours, after the tick of this day.
    now = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)

    assert CronLine("30 2 * * *", "Europe/Berlin").after(now) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("60 * * * *", 'position 1: "60" is not a minute'),
        ("0 24 * * *", 'position 3: "24" is not an hour'),
        ("0  0,12,25 * * *", 'position 9: "25" is not an hour'),
        ("0 0 32 * *", 'position 5: "32" is not a day of the month'),
        ("0 0 * foo *", 'position 7: "foo" is not a month'),
        ("0 0 * * mon-", 'position 9: "mon-" is not a day of the week'),
        ("*/0 * * * *", 'position 1: "\\*/0" is not a minute'),
        ("5-1 * * * *", 'position 1: "5-1" is not a minute'),
        ("٣ * * * *", "position 1"),
        ("0 30 2 * * *", "six|sixth field"),
        ("* * * *", "4 fields instead of five"),
        ("@daily", "stand for"),
        ("", "0 fields"),
        ("0 0 30 2 *", r"never comes.*position 5"),
        ("0 0 31 4,6 *", r"never comes.*position 5"),
        ("9" * 201, "at most 200"),
    ],
)
def test_27_an_impossible_line_is_refused_with_its_position(line: str, said: str) -> None:
    with pytest.raises(JobRejected, match=said):
        CronLine(line)


def test_an_unknown_zone_is_refused() -> None:
    for name in ("Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "Europe"):
        with pytest.raises(JobRejected, match=r"no time zone|each host"):
            CronLine("* * * * *", name)


def test_25_a_century_of_minutes_is_counted_at_once_and_refused_with_the_count() -> None:
    rule = Rule(cron="* * * * *", tz="Europe/Berlin")
    first, last = datetime(1926, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)

    with pytest.raises(JobRejected, match="there are 52596001 ticks"):
        rule.between(first, last)


@pytest.mark.parametrize(
    ("rule", "ticks"), [(Rule(every=1.0), 2_592_001), (Rule(cron="* * * * *"), 43_201), (Rule(cron="0 0 * * *"), 31)]
)
def test_25_thirty_days_of_missed_ticks_are_one_run(rule: Rule, ticks: int) -> None:
    first = datetime(2026, 6, 1, tzinfo=UTC)
    now = first + timedelta(days=30)
    decided = plan(rule, first, now + timedelta(seconds=30), catch_up="latest", catch_up_seconds=10.0)
    extra = 30 if rule.every else 0

    missed = sum(one.ticks for one in decided.missed)
    assert missed + len(decided.fire) == ticks + extra
    assert len(decided.missed) == 1
    assert decided.missed[0].first == first
    assert isinstance(decided.missed[0], Missed)
    assert decided.next_at == rule.after(now + timedelta(seconds=30))


@pytest.mark.parametrize("index", range(5))
def test_every_range_and_step_is_read_as_it_is_written(index: int) -> None:
    least, most = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)][index]
    names = DAYS if index == 4 else ()
    spans = [(first, last) for first in range(least, most + 1) for last in range(first + 1, most + 1)]
    terms = [f"{first}-{last}{step}" for first, last in spans[:: 1 + len(spans) // 150] for step in ("", "/1", "/2", "/5")]
    terms += [f"{first}/{step}" for first in (least, least + 1, most) for step in (1, 2, 7)] + ["*", "*/1", "*/3"]
    terms += [f"{names[first]}-{names[last]}/2" for first, last in spans if names]

    for term in terms:
        fields = ["0", "0", "*", "*", "*"]
        fields[index] = term
        days = CronLine(" ".join(fields))._days  # noqa: SLF001
        read: Any = [days.minutes, days.hours, days.days, days.months, days.weekdays][index]
        # A week has two Sundays: 1/2 is 1, 3, 5 and 7.
        wanted = {one % 7 for one in numbers(term, 0, 7, names)} if index == 4 else numbers(term, least, most)
        assert {one % 7 if index == 4 else one for one in read} == wanted, term


@pytest.mark.parametrize(
    ("line", "term", "instead"),
    [
        ("0 21-21/1 * * *", "21-21/1", 'write "21", or "21-23/1"'),
        ("5-5/10 * * * *", "5-5/10", 'write "5", or "5-59/10"'),
        ("0 0 31-31/2 * *", "31-31/2", 'write "31"'),
        ("0 0 1 dec-dec/3 *", "dec-dec/3", 'write "dec"'),
        ("0 0 1 jan-1/3 *", "jan-1/3", 'write "jan", or "jan-dec/3"'),
        ("0 0 * * mon-mon/2", "mon-mon/2", 'write "mon", or "mon-sat/2"'),
        ("0 0 * * 1,5-5/1", "5-5/1", 'write "5", or "5-6/1"'),
        ("0 0 * * 7-7/1", "7-7/1", 'write "7"'),
        ("0 0 L/2 * *", "L/2", 'write "L"'),
        ("0 0 lw/1 * *", "lw/1", 'write "lw"'),
    ],
)
def test_a_step_through_a_single_value_is_refused(line: str, term: str, instead: str) -> None:
    """It would be read as open to the end: 21-21/1 as 21, 22 and 23."""
    with pytest.raises(JobRejected) as raised:
        CronLine(line)

    assert f'"{term}" has a step and one value' in str(raised.value)
    assert str(raised.value).endswith(instead)


@pytest.mark.parametrize("line", ["*/61 * * * *", "0 */25 * * *", "0 0 1 */13 *"])
def test_a_step_over_all_values_is_refused(line: str) -> None:
    with pytest.raises(JobRejected, match=r"steps over all .* use every="):
        CronLine(line)


def test_a_step_to_the_end_is_not() -> None:
    CronLine("*/60 */24 * */12 *")


OF_THE_HOST = ["localtime", "LocalTime", "posixrules", "Factory", "posix/Europe/Berlin", "right/UTC", "/etc/localtime", ""]


@pytest.mark.parametrize("name", OF_THE_HOST)
def test_a_time_zone_that_each_host_reads_otherwise_is_refused(name: str) -> None:
    with pytest.raises(JobRejected, match=r'such as "Europe/Berlin"'):
        Rule("0 9 * * *", name)


def test_a_time_zone_without_a_name_is_refused() -> None:
    with resources.files("tzdata.zoneinfo.Europe").joinpath("Berlin").open("rb") as file:
        nameless = ZoneInfo.from_file(file)

    with pytest.raises(JobRejected, match="has no name"):
        _rule("0 9 * * *", {"tz": nameless})
