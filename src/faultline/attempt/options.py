"""How to run a job. Checked when set, so that a mistake raises where it is made and not in a worker at night."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

from faultline.attempt.uniqueness import Unique, unique_of
from faultline.core.bounds import (
    ATTEMPTS_MAX,
    DELAY_SECONDS_MAX,
    EXPIRES_SECONDS_MAX,
    EXPIRES_SECONDS_MIN,
    KEY_LENGTH_MAX,
    LEASE_SECONDS_MAX,
    LEASE_SECONDS_MIN,
    PRIORITY_MAX,
)
from faultline.core.checks import Duration as Duration  # noqa: PLC0414 - part of the options; read at run time
from faultline.core.checks import check_moment, check_whole
from faultline.core.checks import check_queue as check_queue  # noqa: PLC0414 - likewise
from faultline.core.checks import check_seconds as check_seconds  # noqa: PLC0414
from faultline.core.checks import check_text as check_text  # noqa: PLC0414
from faultline.core.checks import seconds as seconds  # noqa: PLC0414
from faultline.core.errors import JobRejected
from faultline.core.limits import check_group

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The version of UUIDs that begin with their time.
_TIME_ORDERED = 7
#: What people look for among the options of a task, and where it is.
_OF_A_QUEUE = 'a limit belongs to a queue: app.queue("NAME", concurrency=…, rate=Rate(…)), then queue="NAME" here'
_OF_A_TASK = ("backoff", "executor", "give_up_on", "name", "retry_on", "timeout")
_ELSEWHERE = {
    **dict.fromkeys(("concurrency", "max_concurrency", "rate", "rate_limit", "limit", "each_group"), _OF_A_QUEUE),
    **dict.fromkeys(("cron", "every", "schedule", "tz"), "a schedule stands above the task: @app.schedule(…)"),
    **dict.fromkeys(("retries", "max_retries"), "it is max_attempts here, which counts the first attempt, too"),
    **dict.fromkeys(("countdown", "eta"), "it is delay or run_at here"),
    **dict.fromkeys(_OF_A_TASK, "it is for @app.task(…) alone"),
    "bind": "a task gets its job by a parameter with that type: `job: Job`, or `job: BlockingJob` in a plain def",
    "autoretry_for": "it is retry_on here; without it, every error is tried again",
    "acks_late": "every job is kept until its end is written",
}

#: Options that become seconds in a submission.
_DURATIONS = {"delay": "delay_seconds", "lease": "lease_seconds", "expires": "expires_seconds"}


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
    #: Attempts before the job counts as failed, the first one included. Default: 5.
    max_attempts: int
    #: How long a silent worker keeps the job. Default: 30 seconds.
    lease: Duration
    #: A second enqueue with the same key creates no second job.
    idempotency_key: str
    #: Whether a succeeded job keeps its arguments. Default: True.
    keep_args: bool
    #: The id of the job, for callers that make ids themselves: a UUID of version 7, which begins with its time.
    id: UUID
    #: The job is cancelled unless a worker has claimed it within this time, or by this moment.
    expires: Duration | datetime
    #: The group of the job in its queue, such as a tenant: jobs of one group share its limits, and groups take turns. In
    #: `@app.task(…)` a template over the arguments, `tenant-{tenant_id}`; in `task.options(…)` the key itself.
    group: str
    #: Whether a job that waits already stands in for a new one: `queued`, `open` or `Unique(…)`.
    unique: Unique | str


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
    expires: Duration | datetime | None = None
    group: str | None = None
    unique: Unique | str | None = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        check_text("idempotency_key", self.idempotency_key, KEY_LENGTH_MAX)
        check_whole("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        check_whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        check_seconds("delay", self.delay, 0.0, DELAY_SECONDS_MAX)
        check_seconds("lease", self.lease, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)
        if self.group is not None:
            check_group(self.group)
        if self.id is not None and not isinstance(self.id, UUID):
            raise JobRejected(f"id must be a UUID, not {self.id!r}")
        if self.id is not None and self.id.version != _TIME_ORDERED:
            raise JobRejected(f"id must be a UUID of version 7, not {self.id}; a name of your own is an idempotency_key")
        if self.keep_args is not None and not isinstance(self.keep_args, bool):
            raise JobRejected(f"keep_args must be True or False, not {self.keep_args!r}")
        if self.run_at is not None:
            check_moment("run_at", self.run_at)
            if self.delay is not None:
                raise JobRejected("a job can have a delay or a run_at, not both")
        self._check_expiry()
        unique = unique_of(self.unique)
        if unique is not None and unique.debounce is not None and (self.delay is not None or self.run_at is not None):
            raise JobRejected("a debounce is the delay of its job; leave out delay and run_at")

    def _check_expiry(self) -> None:
        if isinstance(self.expires, datetime):
            check_moment("expires", self.expires)
            if self.run_at is not None and self.expires <= self.run_at:
                raise JobRejected(f"a job with run_at {self.run_at.isoformat()} cannot expire at {self.expires.isoformat()}")
            return
        check_seconds("expires", self.expires, EXPIRES_SECONDS_MIN, EXPIRES_SECONDS_MAX, " or a datetime")
        expires, delay = seconds(self.expires), seconds(self.delay)
        if expires is not None and delay is not None and expires <= delay:
            raise JobRejected(f"a job that expires after {expires:g} s could not run after a delay of {delay:g} s")
        debounce = seconds(self.unique.debounce) if isinstance(self.unique, Unique) else None
        if expires is not None and debounce is not None and expires <= debounce:
            raise JobRejected(f"a job that expires after {expires:g} s could not run after a debounce of {debounce:g} s")

    def submitted(self) -> dict[str, Any]:
        """As fields of a `Submission`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.expires, datetime):
            given["expires_at"] = given.pop("expires")
        if self.queue is not None:
            given["queue"] = str(self.queue)  # of a declared queue its name alone
        if (unique := unique_of(self.unique)) is not None:
            given["unique"] = unique.stated()  # its key is of the job's arguments
        return {_DURATIONS.get(name, name): seconds(value) if name in _DURATIONS else value for name, value in given.items()}


def check_options(words: Iterable[str]) -> None:
    """Refuse words that are no options, and say where the thing is that they stand for."""
    known = {field.name for field in fields(Options)}
    unknown = sorted(set(words) - known)
    if unknown:
        more = _ELSEWHERE.get(unknown[0])
        if more is None:
            from difflib import get_close_matches  # noqa: PLC0415 - for mistakes only

            close = get_close_matches(unknown[0], [*known, *_OF_A_TASK], n=1)
            meant = f"did you mean {close[0]}? The" if close else "the"
            more = f"{meant} options are {', '.join(sorted(known))}; @app.task(…) also has {', '.join(_OF_A_TASK)}"
        raise JobRejected(f"unknown option {', '.join(unknown)}; {more}")


def id_of(job_id: UUID | str) -> UUID:
    """A job's id, which may be given as text."""
    if isinstance(job_id, UUID):
        return job_id
    try:
        return UUID(job_id)
    except (ValueError, TypeError, AttributeError):
        raise JobRejected(f"invalid job id {job_id!r}; give a UUID or its text, such as handle.id") from None
