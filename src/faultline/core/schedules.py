"""Schedules: the rule when one ticks, what it does about missed ticks, and which ticks are due.

Time comes from outside: a rule goes on from a stored position, by the database's clock.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from faultline.core.bounds import LAST_YEAR
from faultline.core.checks import check_moment, check_seconds, check_text
from faultline.core.cron import check_line, cron_line, zone
from faultline.core.errors import JobRejected

if TYPE_CHECKING:
    from collections.abc import Iterator

CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip", "one", "cancel"]

NAME_LENGTH_MAX = 200
EVERY_SECONDS_MIN, EVERY_SECONDS_MAX = 1.0, 315_360_000.0
CATCH_UP_SECONDS = 86_400.0
JITTER_SECONDS_MAX = 86_400.0
BACKFILL_MAX = 10_000
#: Every tick that is no later than this is on time, although several may come due between two looks of a worker.
ON_TIME_SECONDS = 3.0
#: With `skip`: the time that a restart or a failover may take without a tick being missed.
GRACE_SECONDS = 60.0
#: Of ticks that are computed. At the ends of the calendar, time zones leave it.
_FIRST_YEAR = 1900
#: Ticks that one statement may fire.
FIRE_MAX = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule ticks: a cron line, an interval in seconds, or one moment. `JobRejected` if it makes no sense."""

    cron: str | None = None
    tz: str | None = None
    every: float | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("cron", "every", "at") if getattr(self, name) is not None]
        if len(given) != 1:
            raise JobRejected(
                f"a schedule needs one rule: a cron line, every= or at=; it has {' and '.join(given) or 'none'}"
            )
        if self.tz is not None and self.cron is None:
            raise JobRejected("only a cron line has a time zone: leave tz out")
        if self.tz is not None:
            zone(self.tz)
        if self.cron is not None:
            check_line(self.cron)
            cron_line(self.cron, self.tz or "UTC")
        check_seconds("every", self.every, EVERY_SECONDS_MIN, EVERY_SECONDS_MAX)
        if self.at is not None:
            check_moment("at", self.at)

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Rule:
        """The rule in a stored spec."""
        at = spec.get("at")
        return cls(
            spec.get("cron"), spec.get("tz") or None, spec.get("every"), None if at is None else datetime.fromisoformat(at)
        )

    @property
    def text(self) -> str:
        """The rule for people: 0 9 * * mon-fri (Europe/Berlin), every 300 s, at 2026-12-01T09:00:00+00:00."""
        if self.cron is not None:
            return f"{self.cron} ({self.tz or 'UTC'})"
        return f"every {self.every:g} s" if self.every is not None else f"at {self.at.isoformat() if self.at else ''}"

    def fields(self) -> dict[str, Any]:
        """The fields of a spec."""
        at = None if self.at is None else self.at.astimezone(UTC).isoformat()
        given = {"cron": self.cron, "tz": self.tz, "every": self.every, "at": at}
        return {name: value for name, value in given.items() if value is not None}

    def after(self, tick: datetime) -> datetime | None:
        """The tick after this one, in UTC. None: there is none."""
        if self.cron is not None:
            return cron_line(self.cron, self.tz or "UTC").after(tick)
        if self.every is not None:
            return tick + timedelta(seconds=self.every)
        return self.at.astimezone(UTC) if self.at is not None and self.at > tick else None

    def ticks(self, first: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks from this one, which is one, up to the moment."""
        if first > until:
            return
        yield first
        if self.cron is not None:
            yield from cron_line(self.cron, self.tz or "UTC").ticks(first, until)
        elif self.every is not None:
            interval, number = timedelta(seconds=self.every), 1
            while (tick := first + number * interval) <= until:
                yield tick
                number += 1

    def count(self, first: datetime, until: datetime) -> int:
        """How many ticks there are from this one, which is one, up to the moment. Fast however many."""
        if first > until:
            return 0
        if self.cron is not None:
            return 1 + cron_line(self.cron, self.tz or "UTC").count(first, until)
        if self.every is not None:
            return (until - first) // timedelta(seconds=self.every) + 1
        return 1

    def beginning(self, first: datetime, after: datetime) -> datetime | None:
        """The first tick after the moment, of those from `first` on, which is one."""
        if first > after:
            return first
        if self.every is not None:
            return first + ((after - first) // timedelta(seconds=self.every) + 1) * timedelta(seconds=self.every)
        return self.after(after)

    def upcoming(self, first: datetime | None, count: int) -> list[datetime]:
        """The next ticks from this one on, which is one."""
        found: list[datetime] = []
        while first is not None and len(found) < count:
            found.append(first)
            first = self.after(first)
        return found

    def between(self, first: datetime, last: datetime, anchor: datetime | None = None) -> list[datetime]:
        """The ticks from the first to the last moment, both included. More than `BACKFILL_MAX` are refused with their count.

        `anchor`: a tick of an interval, from which the others follow both ways.
        """
        if not all(_FIRST_YEAR <= moment.year < LAST_YEAR for moment in (first, last)):
            raise JobRejected(
                f"ticks from {first.isoformat()} to {last.isoformat()} cannot be computed: both moments must be in the years"
                f" {_FIRST_YEAR} to {LAST_YEAR - 1}"
            )
        before = first - timedelta(microseconds=1)
        if self.every is not None and anchor is not None:
            interval = timedelta(seconds=self.every)
            begin: datetime | None = anchor - ((anchor - first) // interval) * interval
        elif self.every is not None:
            begin = first
        else:
            begin = self.after(before)
        if begin is None or begin > last:
            return []
        count = self.count(begin, last)
        if count > BACKFILL_MAX:
            raise JobRejected(
                f"from {first.isoformat()} to {last.isoformat()} there are {count} ticks, and at most {BACKFILL_MAX} are"
                " allowed; backfill shorter times, one after the other"
            )
        return list(self.ticks(begin, last))


@dataclass(frozen=True, slots=True)
class Policy:
    """What a schedule does about missed ticks and overlaps. None: the default."""

    #: Of ticks that nobody decided about in time: none, the latest (default), or all make their jobs.
    catch_up: CatchUp | None = None
    #: How late a tick may be caught up. Default: a day.
    catch_up_seconds: float | None = None
    #: While a job of the schedule has not ended: make another (allow, default), none (skip), one that waits (one), or cancel
    #: the old one (cancel). A flow has ended when all its jobs have.
    overlap: Overlap | None = None
    #: Jobs run up to so many seconds later, each tick by its own time, the same whoever decides.
    jitter_seconds: float | None = None
    #: The argument of the task that gets the moment of the tick, as text in the format of ISO 8601.
    tick_arg: str | None = None

    def __post_init__(self) -> None:
        if self.catch_up not in (None, *get_args(CatchUp)):
            raise JobRejected(f"catch_up must be skip, latest or all, not {self.catch_up!r}")
        if self.overlap not in (None, *get_args(Overlap)):
            raise JobRejected(f"overlap must be allow, skip, one or cancel, not {self.overlap!r}")
        check_seconds("catch_up_seconds", self.catch_up_seconds, 0.0, EVERY_SECONDS_MAX)
        check_seconds("jitter", self.jitter_seconds, 0.0, JITTER_SECONDS_MAX)
        check_text("tick_arg", self.tick_arg, NAME_LENGTH_MAX)

    def fields(self) -> dict[str, Any]:
        """The fields of a spec."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Missed(NamedTuple):
    """A run of ticks that make no job."""

    first: datetime
    last: datetime
    ticks: int


class Plan(NamedTuple):
    """What is to be decided about a schedule: ticks that make a job, those that make none, and the next one."""

    fire: list[datetime]
    missed: list[Missed]
    next_at: datetime | None


def plan(rule: Rule, first: datetime | None, now: datetime, *, catch_up: str, catch_up_seconds: float) -> Plan:
    """Which ticks are due from this one on. Takes the same time after a minute and after a year."""
    if first is None or first > now:
        return Plan([], [], first)
    window = GRACE_SECONDS if catch_up == "skip" else max(catch_up_seconds, ON_TIME_SECONDS)
    within = _minus(now, window)
    begin = rule.beginning(first, within - timedelta(microseconds=1)) if first < within else first
    missed: list[Missed] = []
    if begin != first:
        missed.append(_run(rule, first, min(within - timedelta(microseconds=1), now)))
    if begin is None or begin > now:
        return Plan([], _joined(missed), begin)
    if catch_up == "all":
        fire = list(islice(rule.ticks(begin, now), FIRE_MAX))
        return Plan(fire, missed, rule.after(fire[-1]))
    on_time = max(begin, rule.beginning(begin, _minus(now, ON_TIME_SECONDS)) or begin)
    if on_time > now:
        # None is on time: the last one counts.
        on_time = _last(rule, begin, now)
    fire = list(rule.ticks(on_time, now))
    if on_time > begin:
        missed.append(_run(rule, begin, on_time - timedelta(microseconds=1)))
    return Plan(fire, _joined(missed), rule.after(fire[-1]))


def _run(rule: Rule, first: datetime, until: datetime) -> Missed:
    """The ticks from this one up to the moment."""
    return Missed(first, _last(rule, first, until), rule.count(first, until))


def _last(rule: Rule, first: datetime, until: datetime) -> datetime:
    """The last tick up to the moment, of those from `first` on. Looks back from the moment, twice as far each time."""
    if rule.every is not None:
        return first + ((until - first) // timedelta(seconds=rule.every)) * timedelta(seconds=rule.every)
    back = timedelta(minutes=2)
    while until - back > first:
        found = list(rule.ticks(begin, until)) if (begin := rule.after(until - back)) is not None and begin <= until else []
        if found:
            return found[-1]
        back *= 2
    return list(rule.ticks(first, until))[-1]


def _joined(missed: list[Missed]) -> list[Missed]:
    """One run where two follow each other."""
    if len(missed) < 2:  # noqa: PLR2004 - a pair
        return missed
    return [Missed(missed[0].first, missed[-1].last, sum(one.ticks for one in missed))]


def _minus(moment: datetime, seconds: float) -> datetime:
    return moment - timedelta(seconds=min(seconds, math.floor((moment - datetime(1971, 1, 1, tzinfo=UTC)).total_seconds())))


def digest_of(name: str, text: str) -> str:
    """Of a declaration: what workers compare."""
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:24]
