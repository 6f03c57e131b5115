"""How to run a job. Checked when set, so that a mistake raises where it is made and not in a worker at night."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from faultline.core.bounds import (
    ATTEMPTS_MAX,
    DELAY_SECONDS_MAX,
    FIRST_YEAR,
    KEY_LENGTH_MAX,
    LAST_YEAR,
    LEASE_SECONDS_MAX,
    LEASE_SECONDS_MIN,
    PRIORITY_MAX,
    QUEUE_LENGTH_MAX,
)
from faultline.core.errors import JobRejected

Duration = float | timedelta  #: Seconds, or a `datetime.timedelta`.

#: Options that become seconds in a submission.
_DURATIONS = {"delay": "delay_seconds", "lease": "lease_seconds"}


class TaskOptions(TypedDict, total=False):
    """How jobs of a task are stored: the keyword arguments of `@app.task(…)` and `task.options(…)`."""

    #: The queue of the jobs. Default: `default`.
    queue: str
    #: From -1000 to 1000; smaller runs first. Default: 0.
    priority: int
    #: How long to wait before the job may run.
    delay: Duration
    #: When the job may run, with a time zone. Not together with `delay`.
    run_at: datetime
    #: After so many failed attempts the job has failed. Default: 5.
    max_attempts: int
    #: How long a silent worker keeps the job. Default: 30 seconds.
    lease: Duration
    #: A second enqueue with the same key creates no second job.
    idempotency_key: str
    #: Whether a succeeded job keeps its arguments. Default: True.
    keep_args: bool
    #: The id of the job, for callers that make ids themselves.
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """None: the task's value, else the database's default."""

    queue: str | None = None
    priority: int | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    lease: Duration | None = None
    idempotency_key: str | None = None
    keep_args: bool | None = None
    id: UUID | None = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        check_text("idempotency_key", self.idempotency_key, KEY_LENGTH_MAX)
        _check_whole("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        _check_whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        check_seconds("delay", self.delay, 0.0, DELAY_SECONDS_MAX)
        check_seconds("lease", self.lease, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)
        if self.id is not None and not isinstance(self.id, UUID):
            raise JobRejected(f"id must be a UUID, not {self.id!r}")
        if self.keep_args is not None and not isinstance(self.keep_args, bool):
            raise JobRejected(f"keep_args must be True or False, not {self.keep_args!r}")
        if self.run_at is not None:
            if not isinstance(self.run_at, datetime):
                raise JobRejected(f"run_at must be a datetime, not {self.run_at!r}")
            if self.run_at.utcoffset() is None:
                raise JobRejected(
                    f"run_at {self.run_at.isoformat()} has no time zone; add one, "
                    "for example with datetime.now(timezone.utc) + timedelta(...)"
                )
            if not FIRST_YEAR <= self.run_at.year < LAST_YEAR:
                raise JobRejected(f"run_at {self.run_at.isoformat()} is outside the years {FIRST_YEAR} to {LAST_YEAR - 1}")
            if self.delay is not None:
                raise JobRejected("a job can have a delay or a run_at, not both")

    def submitted(self) -> dict[str, Any]:
        """As fields of a `Submission`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {_DURATIONS.get(name, name): seconds(value) if name in _DURATIONS else value for name, value in given.items()}


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


def check_queue(name: str | None) -> None:
    """People read and type names, so invisible characters are refused here and in the database."""
    check_text("queue", name, QUEUE_LENGTH_MAX)
    if name is not None and (name != name.strip() or any(unicodedata.category(letter) == "Cc" for letter in name)):
        raise JobRejected(f"queue contains control characters, or begins or ends with white space: {name[:40]!r}")


def id_of(job_id: UUID | str) -> UUID:
    """A job's id, which may be given as text."""
    if isinstance(job_id, UUID):
        return job_id
    try:
        return UUID(job_id)
    except (ValueError, TypeError, AttributeError):
        raise JobRejected(f"invalid job id {job_id!r}; give a UUID or its text, such as handle.id") from None


def _check_whole(name: str, value: int | None, least: int, most: int) -> None:
    if value is None:
        return
    if type(value) is not int or not least <= value <= most:
        raise JobRejected(f"{name} must be a whole number from {least} to {most}, not {value!r}")


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
