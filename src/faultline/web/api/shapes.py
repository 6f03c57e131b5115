"""The schemas of requests and responses, as /openapi.json shows them. Unknown members are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args, get_type_hints
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    create_model,
)

from faultline.core import bounds
from faultline.core.checks import HIDING
from faultline.core.model import Given, JobRecord, JobState, JobSummary, JournalEntry, Submission
from faultline.explain.epochs import Epoch
from faultline.store.reads.failures import Group
from faultline.store.reads.overview import QueueLine, WorkerState
from faultline.store.reads.suspended import Waiting
from faultline.store.reads.views import Step
from faultline.web.api import cursors

BATCH_JOBS_MAX = 1000
PAGE_JOBS_MAX = 200
#: The one character that PostgreSQL cannot store.
NO_NUL = r"^[^\x00]*$"


#: The years that the database accepts as times of a job, in any time zone.
_RUN_AT = r"^(197[1-9]|19[89]\d|[2-8]\d{3}|9[0-8]\d\d|99[0-8]\d|999[0-7])-"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:")


def _only_text(value: object) -> object:
    if not isinstance(value, str) or not _TIME.match(value):
        raise ValueError("a time must be text such as 2030-01-31T12:00:00Z")
    return value


def _is_kept(value: object) -> object:
    if not isinstance(value, str) or not re.match(_RUN_AT, value):
        raise ValueError("the time must be in the years 1971 to 9997")
    return value


def _in_utc(value: datetime) -> datetime:
    """RFC 3339 allows zones 16 hours away, PostgreSQL does not. Times outside the years are moved to their limits."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        ends = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        return ends[value.year != 1]


def _whole(value: object) -> object:
    """JSON has one kind of numbers: 5.0 is as whole as 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
#: The bounds come first: behind the validator, they would not be described where null is allowed too.
AtOnce = Annotated[int, Field(ge=1, le=bounds.CONCURRENCY_MAX), BeforeValidator(_whole)]
#: People read and type them: no invisible characters.
SEEN = rf"^[^\s{HIDING}]([^{HIDING}]*[^\s{HIDING}])?$"
QueueName = Annotated[str, StringConstraints(min_length=1, max_length=bounds.QUEUE_LENGTH_MAX, pattern=SEEN)]
TaskName = Annotated[str, StringConstraints(min_length=1, max_length=bounds.TASK_LENGTH_MAX, pattern=NO_NUL)]
Text = Annotated[str, StringConstraints(max_length=1000, pattern=NO_NUL)]
#: No characters that control a terminal, or hide or reorder text.
_PLAIN = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*$"
Reason = Annotated[str, StringConstraints(max_length=bounds.REASON_LENGTH_MAX, pattern=_PLAIN)]
#: Times are text: a number of seconds would be ambiguous.
Time = Annotated[AwareDatetime, Strict(False), BeforeValidator(_only_text), AfterValidator(_in_utc)]
RunAt = Annotated[Time, BeforeValidator(_is_kept), Field(json_schema_extra={"pattern": _RUN_AT})]
Cursor = Annotated[str, StringConstraints(pattern=cursors.PATTERN)]
WaitingCursor = Annotated[str, StringConstraints(pattern=cursors.WAITING_PATTERN)]
_CALL_NUMBER = r"^[0-9]+([.][0-9]+)*$"
CallNumber = Annotated[str, StringConstraints(min_length=1, max_length=bounds.CALL_NUMBER_LENGTH_MAX, pattern=_CALL_NUMBER)]
_NO_CONTROLS = rf"^[^{HIDING}]*$"
SignalName = Annotated[str, StringConstraints(min_length=1, max_length=bounds.SIGNAL_NAME_LENGTH_MAX, pattern=_NO_CONTROLS)]
SignalKey = Annotated[str, StringConstraints(min_length=1, max_length=bounds.KEY_LENGTH_MAX, pattern=_NO_CONTROLS)]
StreamName = Annotated[str, StringConstraints(min_length=1, max_length=bounds.STREAM_NAME_LENGTH_MAX, pattern=_NO_CONTROLS)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=bounds.KEY_LENGTH_MAX, pattern=NO_NUL)]
#: The key of a group is any text but `*`, which stands for each group.
_GROUP = rf"^([^{HIDING}*]|[^{HIDING}]{{2,}})$"
GroupKey = Annotated[str, StringConstraints(min_length=1, max_length=bounds.GROUP_LENGTH_MAX, pattern=_NO_CONTROLS)]


_OF_ANSWER = "Use `next_cursor` of the previous answer."
#: What is wrong with a text, in words: the pattern is for programs.
PATTERNS_IN_WORDS = {
    NO_NUL: "The character NUL is not allowed.",
    SEEN: "No control characters, and no white space at either end.",
    _NO_CONTROLS: "No control characters.",
    _GROUP: "No control characters, and not `*`, which stands for each group.",
    _PLAIN: "No control characters, but for tabs and line ends.",
    cursors.PATTERN: _OF_ANSWER,
    cursors.FAILED_PATTERN: _OF_ANSWER,
    cursors.UNENDED_PATTERN: _OF_ANSWER,
    cursors.WAITING_PATTERN: _OF_ANSWER,
    cursors.GROUP_PATTERN: _OF_ANSWER,
    _CALL_NUMBER: "The number of a call, such as 3 or 3.1.2.",
}
#: The patterns of texts of a submission.
_PATTERNS = {"queue": SEEN, "group": _GROUP}


def _together(**kinds: Any) -> dict[str, Any]:
    """In the description: a request with all of these, of these types."""
    shapes = {name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in kinds.items()}
    return {"required": [*kinds], "properties": shapes}


_DEBOUNCED = {"type": "object", **_together(debounce="number")}
#: What no job may have together. What is compared in time is not said here: JSON Schema has no words for it.
_NOT_TOGETHER: dict[str, Any] = {
    "anyOf": [
        _together(delay_seconds="number", run_at="string"),
        _together(expires_seconds="number", expires_at="string"),
        _together(unique=_DEBOUNCED, delay_seconds="number"),
        _together(unique=_DEBOUNCED, run_at="string"),
    ]
}
#: A job would never be the same as another; no queued job could be moved; a limit of nothing.
_NOT_UNIQUE: dict[str, Any] = {
    "anyOf": [
        {"required": ["while"], "properties": {"while": {"type": "null"}, "period": {"type": "null"}}},
        _together(**{"while": "null", "debounce": "number"}),
        {"required": ["at_most"], "properties": {"at_most": {"type": "number"}, "debounce": {"type": "null"}}},
    ]
}
#: The values of arguments, nested to any depth: all of JSON except the character that PostgreSQL cannot store and integers
#: of more than 64 bits. The reader of JSON checks it, not Pydantic.
JSON_VALUE: dict[str, Any] = {
    "anyOf": [
        {"type": ["null", "boolean"]},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
        {"type": "number", "not": {"type": "integer"}},
        {"type": "string", "pattern": NO_NUL},
        {"type": "array", "items": {"$ref": "#/components/schemas/JsonValue"}},
        {"$ref": "#/components/schemas/JsonObject"},
    ]
}
JSON_OBJECT: dict[str, Any] = {
    "type": "object",
    "propertyNames": {"pattern": NO_NUL},
    "additionalProperties": {"$ref": "#/components/schemas/JsonValue"},
}


class Asked(BaseModel):
    """A request: unknown members are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _shape(name: str, kind: Any, given: Given) -> Any:
    """What a request may say for this field of a submission, as Pydantic wants to know it."""
    said: dict[str, Any] = {} if given.help is None else {"description": given.help}
    if kind is str:
        said |= {"min_length": given.least, "max_length": given.most, "pattern": _PATTERNS.get(name, NO_NUL)}
    elif given.most is not None:
        said |= {"ge": given.least, "le": given.most}
    if kind is float:
        said |= {"allow_inf_nan": False}
    shape: Any = {int: Whole, datetime: RunAt}.get(kind, kind)
    return shape if given.default is not None else shape | None, Field(given.default, **said)


def shapes_of_a_submission() -> dict[str, Any]:
    kinds = get_type_hints(Submission)
    return {
        one.name: _shape(one.name, get_args(kinds[one.name])[0], one.metadata["given"])
        for one in fields(Submission)
        if "given" in one.metadata
    }


_Span = Annotated[float, Field(ge=bounds.UNIQUE_SECONDS_MIN, le=bounds.UNIQUE_SECONDS_MAX, allow_inf_nan=False)]


class UniqueJob(Asked):
    """What makes a job the same as another of its queue, and what becomes of the second."""

    model_config = ConfigDict(json_schema_extra={"not": _NOT_UNIQUE})

    key: Key | None = Field(None, description="What is the same. Default: the task with its arguments.")
    while_: Literal["queued", "open"] | None = Field(
        "queued",
        alias="while",
        description="`queued`: a job that waits stands in for a new one. `open`: a running one, too. null: only `period`.",
    )
    period: _Span | None = Field(None, description="A job that was enqueued so many seconds ago stands in for it.")
    then: Literal["keep", "replace"] = Field("keep", description="`replace`: the queued job gets these arguments and time.")
    debounce: _Span | None = Field(None, description="It runs so many seconds after the last submission.")
    at_most: _Span | None = Field(
        None, description="But not later than so many seconds after the first, `debounce` or more."
    )


# In the order of a submission: a request is known again by a digest of its fields.
_NewJob = create_model(
    "_NewJob",
    __base__=Asked,
    task=(TaskName, ...),
    args=(dict[str, Any], Field({}, description="The arguments of the task, by name.")),
    **shapes_of_a_submission(),
    unique=(UniqueJob | None, Field(None, description="Create no second job while this one waits.")),
)


class NewJob(_NewJob):  # type: ignore[misc, valid-type]  # made of the fields of a submission
    """A job to enqueue."""

    model_config = ConfigDict(json_schema_extra={"not": _NOT_TOGETHER})


class NewJobs(Asked):
    jobs: list[NewJob] = Field(min_length=1, max_length=BATCH_JOBS_MAX)


class EnqueuedJob(BaseModel):
    id: UUID


class EnqueuedJobs(BaseModel):
    jobs: list[EnqueuedJob]


class JobFilter(Asked):
    """Which jobs are listed, and where the page begins."""

    # Everything in a URL is text.
    model_config = ConfigDict(extra="forbid", strict=False)

    state: JobState | None = None
    queue: QueueName | None = None
    task: TaskName | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    key: Key | None = Field(None, description="An idempotency key as the caller gave it, over HTTP or not.")
    group: GroupKey | None = None
    limit: int = Field(50, ge=1, le=PAGE_JOBS_MAX)
    cursor: Cursor | None = Field(None, description="`next_cursor` of the previous page, with the same filters.")


class JobPage(BaseModel):
    jobs: list[JobSummary]
    next_cursor: str | None = Field(description="The cursor of the next page; null at the end.")
    stopped_early: bool = Field(description="The search stopped after 10,000 jobs; more may match on the next pages.")


class LedgerEntry(BaseModel):
    """The completion of the job: under which token, by whom, when."""

    fencing_token: int
    owner: str
    claimed_at: datetime
    finished_at: datetime

    @classmethod
    def of(cls, record: JobRecord) -> LedgerEntry | None:
        return cls.model_validate(record, from_attributes=True) if record.state is JobState.SUCCEEDED else None


@dataclass(frozen=True, slots=True)
class Job(JobRecord):
    """Everything about one job."""

    epochs: list[Epoch]
    journal: list[JournalEntry]
    steps: list[Step]
    ledger: LedgerEntry | None


class Why(Asked):
    """The reason for an operation on a job or a queue."""

    reason: Reason | None = Field(None, description="Recorded in the journal, with the name and id of the key.")


class WhyCancelled(Why):
    """How a job is cancelled."""

    undo: bool = Field(default=False, description="Undo its open sagas first, and those of its children.")


class Changed(BaseModel):
    id: UUID
    state: JobState


class Fork(Asked):
    """From where a job is forked."""

    before: CallNumber | None = Field(
        None,
        description="The `number` of a call: it and later ones run, those before it are kept. Default: keep all that ended.",
    )
    args: dict[str, Any] | None = Field(None, description="The arguments of the new job. Default: those of the job.")
    reason: Reason | None = Field(None, description="Recorded in the journal of both jobs, with the name and id of the key.")


class Forked(BaseModel):
    id: UUID = Field(description="Of the new job.")
    forked_from: UUID


class NewSignal(Asked):
    """A signal for a job."""

    name: SignalName
    payload: Any = Field(None, description="Any JSON. The task gets it as the result of `receive`.")
    key: SignalKey | None = Field(None, description="The same key counts once per job, however often it is sent.")
    for_call: CallNumber | None = Field(
        None, description="The `number` of the wait that it answers. When that is over, the signal is refused."
    )


class NewSignalByKey(NewSignal):
    """A signal for the job with this idempotency key."""

    idempotency_key: Key = Field(description="An idempotency key as the caller gave it, over HTTP or not.")


class SentSignal(BaseModel):
    job_id: UUID
    created: bool = Field(description="false: a signal with this key was sent before.")


class WaitingFilter(Asked):
    """Which waits are listed, and where the page begins."""

    model_config = ConfigDict(extra="forbid", strict=False)

    kind: Literal["signal", "sleep", "children", "watch", "after", "retry"] | None = None
    name: SignalName | None = Field(None, description="Only signals of this name.")
    limit: int = Field(50, ge=1, le=PAGE_JOBS_MAX)
    cursor: WaitingCursor | None = Field(None, description="`next_cursor` of the previous page, with the same filters.")


class WaitingPage(BaseModel):
    waiting: list[Waiting]
    next_cursor: str | None = Field(description="The cursor of the next page; null at the end.")


class FailureFilter(Asked):
    model_config = ConfigDict(extra="forbid", strict=False)

    queue: QueueName | None = None
    task: TaskName | None = None


class Failures(BaseModel):
    groups: list[Group]
    at_least: bool = Field(description="Only the newest failed jobs were searched; there may be more.")


class Queues(BaseModel):
    queues: list[QueueLine]


class Paused(BaseModel):
    queue: str
    paused_at: datetime


class Resumed(BaseModel):
    queue: str
    was_paused: bool


class Workers(BaseModel):
    workers: list[WorkerState]


class Invariant(BaseModel):
    name: str
    holds: bool | None = Field(description="null: it could not be checked.")
    rows: list[list[str]] = Field(description="Some of the rows that violate it.")
    unchecked: str | None = Field(default=None, description="Why it could not be checked.")


class Verdict(BaseModel):
    """The invariants of the database, and whether they hold."""

    holds: bool | None = Field(description="null: none is violated, but not all could be checked.")
    checked_at: datetime
    took_seconds: float
    invariants: list[Invariant]


class Refusal(BaseModel):
    """RFC 9457, with a code for programs and what to do next."""

    type: Literal["about:blank"]
    title: str
    status: int
    code: str
    detail: str
    next_step: str | None = None
    sqlstate: str | None = None
    errors: list[dict[str, str]] | None = None
    job_ids: list[UUID] | None = None


class Health(BaseModel):
    status: Literal["up"]


class Readiness(BaseModel):
    ready: bool
    reasons: list[str]
    workers_alive: int | None
