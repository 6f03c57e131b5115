"""What a queue, each of its groups, or one group may do: how many jobs at once, and how many in a given time.

Checked when made, so that a mistake raises where it is written and not in a worker at night.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, cast

from faultline.core.bounds import (
    CONCURRENCY_MAX,
    GROUP_LENGTH_MAX,
    LIMIT_MAX,
    PER_SECONDS_MAX,
    PER_SECONDS_MIN,
    QUEUE_LENGTH_MAX,
    RATE_MIN,
    WEIGHT_MAX,
    WEIGHT_MIN,
)
from faultline.core.checks import check_readable, in_words, is_finite
from faultline.core.errors import JobRejected, declaring
from faultline.core.model import Json  # noqa: TC001 - FastAPI looks at the types of fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: In the place of a group's key: the limit of the queue as a whole, and that of each group.
WHOLE_QUEUE, EACH_GROUP = "", "*"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in a given time: `Rate(1000, per=60)` is 1,000 a minute.

    :param count: How many, more than 0.
    :param per: In how many seconds, or a `timedelta`.
    :param burst: How many may come at once after a time without any, 1 or more. Default: the count, at least 1. In no time
        `t` there are more than `burst + count * t / per`.
    """

    count: float
    per: float | timedelta = 1.0
    burst: float | None = None

    def __post_init__(self) -> None:
        with declaring():
            check_fields(self.stored())

    @property
    def per_seconds(self) -> float:
        return self.per.total_seconds() if isinstance(self.per, timedelta) else self.per

    @property
    def burst_jobs(self) -> float:
        """How many may come at once, given or not."""
        return max(1.0, math.ceil(self.count)) if self.burst is None else self.burst

    def stored(self) -> dict[str, Json]:
        """As the database has it."""
        fields = {"rate": self.count, "per": self.per_seconds}
        return fields if self.burst is None else fields | {"burst": self.burst}


class LimitFields(TypedDict, total=False):
    """What `app.limits.set(…)` changes. What is not given stays as it is; None is no limit."""

    #: How many jobs may run at once, 1 or more.
    concurrency: int | None
    #: How many jobs may start in a given time.
    rate: Rate | None
    #: Its share beside other groups: one of weight 2 gets twice as much as one of weight 1.
    weight: float | None
    #: One after the other, in strict order: the next starts when the one before has ended for good, after all its attempts.
    ordered: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What each group, or one group, may do. What is not given is not limited; for one group, it is as for each group.

    :param concurrency: How many jobs may run at once, 1 or more. To stop all of them, pause the queue.
    :param rate: How many jobs may start in a given time.
    :param weight: Its share beside other groups that want the same slots: one of weight 2 gets twice as much as one of
        weight 1, the default.
    :param ordered: One after the other, in strict order: the next starts when the one before has ended for good, after all
        its attempts.
    """

    concurrency: int | None = None
    rate: Rate | None = None
    weight: float | None = None
    ordered: bool | None = None

    def __post_init__(self) -> None:
        with declaring():
            check_rate("rate", self.rate)
            if self.stored():
                check_fields(self.stored())

    def stored(self) -> dict[str, Json]:
        """Its fields as the database has them, without those that are not given."""
        given = {"concurrency": self.concurrency, "weight": self.weight, "ordered": self.ordered}
        fields = {name: found for name, found in given.items() if found is not None}
        return fields if self.rate is None else fields | self.rate.stored()


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A limit as stored in the database: what the code declares, and what people have set over it."""

    queue: str
    #: The key of a group; empty for the queue as a whole, `*` for each group.
    group: str
    #: What the code says: `concurrency`, `rate`, `per`, `burst`, `weight`, `ordered`.
    declared: dict[str, Json]
    #: What people have set, which wins until it is reset. None in it: no limit.
    override: dict[str, Json]
    #: What holds of these two. What one group does not say, it has from `*`.
    effective: dict[str, Json]
    changed_at: datetime
    #: Who has set the override, and why.
    changed_by: str | None
    reason: str | None
    #: Some code has declared it, and no living worker has it in its code any more.
    orphaned: bool


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """A budget as stored in the database, and what is in it now."""

    name: str
    #: What the code says: `rate`, `per`, `burst`. Empty: it was made at run time.
    declared: dict[str, Json]
    #: What people have set, which wins until it is reset.
    override: dict[str, Json]
    #: What holds of these two.
    effective: dict[str, Json]
    #: How much may be taken now.
    tokens: float
    #: How long a job that asks now waits behind others. 0: none waits.
    line_seconds: float
    changed_at: datetime
    #: Who has set the override, and why.
    changed_by: str | None
    reason: str | None
    #: Nothing is set for it, and no living worker has it in its code: a reset removes it.
    orphaned: bool


def changed_fields(given: LimitFields) -> dict[str, Json]:
    """A change of a limit as the database has it: None for what is no longer limited."""
    known = LimitFields.__annotations__
    unknown = sorted(set(given) - set(known))
    if unknown or not given:
        what = f"a limit has no {unknown[0]}" if unknown else "nothing to set"
        raise JobRejected(f"{what}; name some of {', '.join(known)}")
    fields: dict[str, Json] = {name: None for name, found in given.items() if found is None}
    if "rate" in given:
        # A new rate does not keep the burst of the one before.
        fields |= {"per": None, "burst": None}
    rate = given.get("rate")
    check_rate("rate", rate)
    # What the values may be is looked at where it is sent: what is set at run time is no declaration.
    others = {name: found for name, found in given.items() if name != "rate" and found is not None}
    return fields | cast("dict[str, Json]", others) | ({} if rate is None else rate.stored())


def check_rate(what: str, rate: Any) -> None:
    """`JobRejected` unless it is a `Rate`, or None."""
    if rate is not None and not isinstance(rate, Rate):
        raise JobRejected(f"{what} must be a Rate, such as Rate(100, per=60) for 100 a minute, not {rate!r:.60}")


def check_fields(fields: Mapping[str, Any], *, whole_queue: bool = False) -> None:
    """Fields of a limit as the database has them; None as a value is no limit. `JobRejected` says what is wrong."""
    unknown = sorted(fields.keys() - set(_CHECKS))
    if unknown:
        raise JobRejected(f"a limit has no field {', '.join(unknown)}; it has {', '.join(_CHECKS)}")
    if not fields:
        raise JobRejected(f"nothing to set: name at least one of {', '.join(_CHECKS)}")
    if whole_queue and not fields.keys().isdisjoint({"weight", "ordered"}):
        raise JobRejected("weight and ordered are for groups; a queue as a whole has concurrency and rate")
    for name, value in fields.items():
        if value is not None:
            _CHECKS[name](value)
    if fields.get("ordered") and (fields.get("concurrency") or 1) > 1:
        raise JobRejected(f"ordered jobs run one after the other, so concurrency must be 1, not {fields['concurrency']}")


def check_group(key: Any, what: str = "group") -> None:
    """People read and type keys of groups. `JobRejected` unless it is text that the database takes."""
    if not isinstance(key, str) or not key:
        raise JobRejected(f"{what} must be text of 1 to {GROUP_LENGTH_MAX} characters, not {key!r:.60}")
    if len(key) > GROUP_LENGTH_MAX:
        raise JobRejected(f"{what} has {len(key)} characters; at most {GROUP_LENGTH_MAX} are allowed: {key[:40]!r}…")
    check_readable(what, key)
    if key == EACH_GROUP:
        raise JobRejected(f"{what} cannot be '*', which stands for each group; use another text")


def check_budget(name: Any) -> None:
    """`JobRejected` unless it is a name that a budget can have."""
    if not isinstance(name, str) or not 1 <= len(name) <= QUEUE_LENGTH_MAX:
        raise JobRejected(f"the name of a budget must be text of 1 to {QUEUE_LENGTH_MAX} characters, not {name!r:.60}")
    check_readable("the name of a budget", name)


def check_cost(cost: Any) -> None:
    """`JobRejected` unless so much can be taken from a budget."""
    _check_number("the cost of a take", cost, None, LIMIT_MAX)


def _check_concurrency(value: Any) -> None:
    if type(value) is not int or not 1 <= value <= CONCURRENCY_MAX:
        stop = "; to stop a queue, pause it" if value == 0 else ""
        raise JobRejected(
            f"concurrency must be a whole number from 1 to {in_words(CONCURRENCY_MAX)}, not {value!r:.60}{stop}"
        )


def _check_number(name: str, value: Any, least: float | None, most: float) -> None:
    """`least` None: more than 0."""
    if not is_finite(value):
        raise JobRejected(f"{name} must be a number, not {value!r:.60}")
    if value > most or value <= 0 or (least is not None and value < least):
        bounds = "more than 0 and at most" if least is None else f"from {in_words(least)} to"
        raise JobRejected(f"{name} must be {bounds} {in_words(most)}, not {value!r:.60}")


def _check_ordered(value: Any) -> None:
    if not isinstance(value, bool):
        raise JobRejected(f"ordered must be true or false, not {value!r:.60}")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "concurrency": _check_concurrency,
    "rate": lambda value: _check_number("the count of a rate", value, RATE_MIN, LIMIT_MAX),
    "per": lambda value: _check_number("per, the seconds of a rate,", value, PER_SECONDS_MIN, PER_SECONDS_MAX),
    "burst": lambda value: _check_number("the burst of a rate", value, 1.0, LIMIT_MAX),
    "weight": lambda value: _check_number("weight", value, WEIGHT_MIN, WEIGHT_MAX),
    "ordered": _check_ordered,
}
