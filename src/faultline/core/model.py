"""The nouns of the protocol as values. A write takes a `Lease`, so that no code can write without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - FastAPI looks at the types of fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from faultline.core import bounds
from faultline.core.states import JobState as JobState  # noqa: PLC0414, TC001 - likewise; it is one of the nouns

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_ID = UUID(int=0)
Json = Any  # what JSON can say: null, true, 1, 1.5, "text", [..], {..}


class Reason(StrEnum):
    """Why a write was refused. `BUSY` is not a refusal: another session holds the row's lock, try again."""

    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105 - a word of the protocol, no secret
    LEASE_LOST = "lease_lost"
    LEASE_EXPIRED = "lease_expired"
    NOT_RUNNING = "not_running"
    BUSY = "busy"


#: A field that differs from job to job. The text of the other fields is made once and used for many jobs.
_OWN = {"own": True}


class Given(NamedTuple):
    """What a field of a submission may be, and what it means, for those who describe it to others: HTTP does."""

    #: What it is when nobody says.
    default: Any = None
    #: Of a number, both included; of a text, its length.
    least: float | None = None
    most: float | None = None
    help: str | None = None


def _given(
    default: Any = None, least: float | None = None, most: float | None = None, meaning: str | None = None
) -> dict[str, Any]:
    return {"given": Given(default, least, most, meaning)}


# Not frozen: setting the fields of a frozen dataclass takes longer than the rest of an enqueue.
@dataclass(slots=True)
class Submission:
    """One job to enqueue, as `task.bind(…)` makes it. A field that is None gets the database's default."""

    #: The name of the task.
    task: str
    #: The arguments as the text of a JSON object, already checked.
    args: str = "{}"
    queue: str | None = field(default=None, metadata=_given(bounds.QUEUE, 1, bounds.QUEUE_LENGTH_MAX))
    priority: int | None = field(
        default=None,
        metadata=_given(bounds.PRIORITY, -bounds.PRIORITY_MAX, bounds.PRIORITY_MAX, "Lower runs first."),
    )
    delay_seconds: float | None = field(default=None, metadata=_given(None, 0, bounds.DELAY_SECONDS_MAX))
    run_at: datetime | None = field(
        default=None,
        metadata=_OWN | _given(meaning="Do not run it before this time. Cannot be combined with a delay."),
    )
    max_attempts: int | None = field(default=None, metadata=_given(bounds.MAX_ATTEMPTS, 1, bounds.ATTEMPTS_MAX))
    lease_seconds: float | None = field(
        default=None, metadata=_given(bounds.LEASE_SECONDS, bounds.LEASE_SECONDS_MIN, bounds.LEASE_SECONDS_MAX)
    )
    idempotency_key: str | None = field(default=None, metadata=_OWN)
    keep_args: bool | None = field(
        default=None, metadata=_given(default=True, meaning="Whether to keep the arguments after the job has succeeded.")
    )
    id: UUID | None = field(default=None, metadata=_OWN)
    #: A further text that must be the same in a second submission with this key.
    digest: str | None = field(default=None, metadata=_OWN)
    #: The trace context, in the format of W3C.
    trace: str | None = field(default=None, metadata=_OWN)
    expires_seconds: float | None = field(
        default=None,
        metadata=_given(
            None,
            bounds.EXPIRES_SECONDS_MIN,
            bounds.EXPIRES_SECONDS_MAX,
            "Cancel it unless a worker has claimed it within this time.",
        ),
    )
    expires_at: datetime | None = field(
        default=None,
        metadata=_OWN | _given(meaning="Likewise, at this time. Cannot be combined with expires_seconds."),
    )
    group: str | None = field(
        default=None,
        metadata=_OWN
        | _given(None, 1, bounds.GROUP_LENGTH_MAX, "Jobs of a queue with the same group share its limits, and take turns."),
    )
    #: What counts as the same job, as `Unique.stated` makes it.
    unique: Json | None = field(default=None, metadata=_OWN)


class Enqueued(NamedTuple):
    """The job of a submission: a new one, or the one that already had its key or id."""

    job_id: UUID
    created: bool


@dataclass(slots=True, eq=False)
class Lease:
    """The right to write for one job, until the lease is lost. The proof is (job_id, fencing_token, owner).

    Compared by identity, which makes it a cheap key. Never changed, but not frozen: every job that runs makes one, and
    frozen ones take three times as long to make.
    """

    job_id: UUID
    fencing_token: int
    task: str
    args: Json
    attempt: int
    max_attempts: int
    needs_start_record: bool
    reaps: int
    priority: int
    next_run_at: datetime
    lease_seconds: float
    #: The key of the submission, if it had one.
    key: str | None
    #: Whether it is a job of a flow: it may have a history, and others may wait for its end.
    in_flow: bool
    #: Whose job it is. None: nobody's.
    group: str | None
    #: This field and the next are not columns.
    owner: str
    #: Why Python cannot read the arguments, if so. A job that was enqueued by SQL may contain such values.
    fault: str | None = None

    @property
    def idempotency_key(self) -> str:
        return self.key or str(self.job_id)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write that the database refused."""

    lease: Lease
    reason: Reason
    current_token: int | None


@dataclass(frozen=True, slots=True)
class Unwritten:
    """The result of a batch of writes. Every lease that is in neither list was written."""

    stale: list[Refusal] = field(default_factory=list)
    busy: list[Lease] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed, and what follows."""

    error: str
    then: str = "retry"  # or "fail", "cancel"
    delay_seconds: float | None = None
    #: The numbers of the calls of its program by whose errors it failed. A retry opens these again.
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """A job that is released unfinished, without using up an attempt."""

    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """A job whose lease was reaped."""

    job_id: UUID
    fencing_token: int
    owner: str
    state: JobState
    reason: str
    queue: str
    task: str
    attempt: int
    max_attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Bound:
    """The caller has seen no queued job of this priority below this position. Keeps claims cheap."""

    priority: int
    run_at: datetime
    id: UUID = _FIRST_ID


def bounds_after(leases: Sequence[Lease]) -> dict[int, Bound]:
    """By priority, the position up to which a claim has taken the jobs. The leases are in the order of the queue."""
    last = {lease.priority: lease for lease in leases}
    return {priority: Bound(priority, lease.next_run_at, lease.job_id) for priority, lease in last.items()}


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job as lists show it: without arguments, result and progress, which may be large."""

    id: UUID
    state: JobState
    queue: str
    task: str
    priority: int
    attempt: int
    max_attempts: int
    fencing_token: int
    created_at: datetime
    next_run_at: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    owner: str | None
    lease_expires_at: datetime | None
    idempotency_key: str | None
    last_error: str | None
    #: The job at the root of its flow. None: it has neither waited nor called, nor is it a child.
    flow_id: UUID | None
    #: It waits without a lease: `next_run_at` says when it stops waiting.
    suspended: bool
    #: Whose job it is: jobs of one group share its limits. None: nobody's.
    group: str | None
    #: It is due, and waits in its group for a permit.
    in_group: bool

    @property
    def shown_state(self) -> str:
        """Its state for people: a queued job that waits for something other than a worker is waiting."""
        return "waiting" if self.suspended else str(self.state)

    def waits_at(self, now: datetime) -> bool:
        """Whether it is still suspended then: once its time has come, it waits for a permit or a worker, like any other.

        :param now: The database's time.
        """
        return self.suspended and (self.next_run_at is None or self.next_run_at > now)


@dataclass(frozen=True, slots=True)
class JobRecord(JobSummary):
    """A job as stored in the database, open or ended."""

    renewals: int | None
    reaps: int | None
    progress: Json
    args: Json
    result: Json
    #: Cancelled if no worker has claimed it by then. None: never.
    expires_at: datetime | None
    #: What it is unique by, in its queue.
    unique_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long this worker keeps what has ended, in seconds. None: as long as the database's settings say.

    Every worker deletes what is older. So the shortest time of all workers counts.
    """

    #: Succeeded jobs, with their steps and results.
    ledger: float | None = None
    #: Failed and cancelled jobs, with their steps.
    failed: float | None = None
    #: What went wrong, and what people did.
    journal: float | None = None
    #: Idempotency keys. A key of an open job is never deleted.
    keys: float | None = None
    #: Flows, from the end of the job at their root: all their jobs, with what they called and received.
    flows: float | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An entry of a job's journal: a failed attempt, a refused write, a reaped lease, an operation."""

    at: datetime
    event: str
    fencing_token: int | None
    owner: str | None
    detail: Json
