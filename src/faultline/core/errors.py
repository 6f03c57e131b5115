"""Every error Faultline raises. Each message says what happened, to what, and what to do next.

What is declared in code and wrong is a `ConfigError`, what is submitted and wrong a `JobRejected`, and what is not there the
`NotFound` of that thing.

FaultlineError
├── ConfigError                 no database is configured, or what the code declares is invalid
│   └── SetupError              something that is needed is missing or in use: a port, a package, a key, a confirmation
├── DatabaseUnavailable         the server could not be reached or refused the connection; nothing was written
├── PermissionDenied  (42501)   the login lacks a right in the database; nothing was written
├── StatementTimeout            the database cancelled a statement that took too long; nothing was written
├── DatabaseBusy                another transaction held what this one needs; nothing was written: try again
├── OutcomeUnknown              the answer to a write was lost; it may or may not have been committed
├── SchemaError
│   ├── SchemaMissing           `faultline migrate` was never run here
│   ├── SchemaBehind            the database's protocol is older than this build's
│   ├── SchemaAhead             the database no longer supports builds as old as this one
│   ├── SchemaAltered           a migration of the database has another text than in this build
│   └── MigrationBlocked        `faultline migrate` could not get its locks in time; nothing was changed
├── RecoverBlocked              `faultline recover` could not get its lock in time; nothing was changed
├── JobRejected       (FL005)   what was submitted is invalid; nothing was enqueued or changed
│   └── ResultRejected          the result of a job or of one of its steps cannot be stored
├── KeyConflict       (FL003)   the key or id was used before, with another task or other arguments
├── StaleLease        (FL001)   the lease is lost; nothing was written
├── FenceBroken       (FL006)   the task ended the job's transaction itself; the job is not completed
├── IllegalTransition (FL002)   the job's state does not allow this
├── JobNotFound       (FL004)   no such job
├── ScheduleNotFound  (FL004)   no such schedule
├── BudgetNotFound    (FL004)   no such budget
├── LimitReached      (FL007)   there are as many as there may be: children of a call, signals that a job keeps
├── CostTooHigh                 a job takes more from a budget than its burst: it would wait for ever
├── UnreadableJson              the database holds JSON that Python cannot read
├── JobFailed                   `result()`: the job failed
├── JobCancelled                `result()`: the job was cancelled
├── ResultTimeout               `result()`: the job did not end within the timeout
├── StepFailed                  a step of a flow used up its tries
├── ChildFailed                 a job that a flow called, or waited for, failed or was cancelled
├── SignalTimeout               no signal came within the timeout of `receive`
├── FlowTooLong                 a job has recorded as many calls, or as large results, as one job may
└── EmbeddedError
    └── PostgresNotFound        no PostgreSQL binaries; the message lists every way to provide them
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class FaultlineError(Exception):
    """The base class: `except FaultlineError` catches every error of Faultline and nothing else."""

    #: What the database raises for the same failure, for programs in other languages.
    sqlstate: str | None = None


class ConfigError(FaultlineError):
    """No database is configured, or what the code declares is invalid."""


class SetupError(ConfigError):
    """Something that is needed is missing or in use: a port, a package, a key, a confirmation."""


class DatabaseUnavailable(FaultlineError):
    """The server could not be reached or refused the connection; nothing was written."""


class PermissionDenied(FaultlineError):
    """The login lacks a right in the database; nothing was written."""

    sqlstate = "42501"


class StatementTimeout(FaultlineError):
    """The database cancelled a statement that took too long; nothing was written."""


class DatabaseBusy(FaultlineError):
    """Another transaction held what this one needs, or they waited for each other; nothing was written. Try again."""


class OutcomeUnknown(FaultlineError):
    """The answer to a write was lost; it may or may not have been committed."""


class SchemaError(FaultlineError):
    """The schema of the database does not fit this build; nothing was written."""


class SchemaMissing(SchemaError):
    """`faultline migrate` was never run in this database."""


class SchemaBehind(SchemaError):
    """The database's protocol is older than this build's."""


class SchemaAhead(SchemaError):
    """The database no longer supports builds as old as this one."""


class SchemaAltered(SchemaError):
    """A migration of the database has another text than in this build."""


class MigrationBlocked(SchemaError):
    """`faultline migrate` could not get its locks in time; nothing was changed."""


class RecoverBlocked(FaultlineError):
    """`faultline recover` could not get its lock in time; nothing was changed."""


class JobRejected(FaultlineError, ValueError):
    """What was submitted is invalid; nothing was enqueued or changed."""

    sqlstate = "FL005"


class ResultRejected(JobRejected):
    """The result of a job or of one of its steps cannot be stored."""


class KeyConflict(FaultlineError):
    """The key or id was used before, with another task or other arguments."""

    sqlstate = "FL003"


class StaleLease(FaultlineError):
    """The lease is lost. `reason` is one of `Reason`; `current_token` is the newest token known, if any."""

    sqlstate = "FL001"

    def __init__(self, message: str, *, reason: str | None = None, current_token: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.current_token = current_token


class FenceBroken(FaultlineError):
    """The task ended the job's transaction itself; the job is not completed."""

    sqlstate = "FL006"


class IllegalTransition(FaultlineError):
    """The job's state does not allow this."""

    sqlstate = "FL002"


class JobNotFound(FaultlineError, LookupError):
    """No such job."""

    sqlstate = "FL004"


class ScheduleNotFound(FaultlineError, LookupError):
    """No such schedule."""

    sqlstate = "FL004"


class BudgetNotFound(FaultlineError, LookupError):
    """No such budget."""

    sqlstate = "FL004"


class LimitReached(FaultlineError):
    """There are as many as there may be: children of a call, signals that a job keeps."""

    sqlstate = "FL007"


class CostTooHigh(FaultlineError):
    """A job takes more from a budget than its burst: it would wait for ever."""


class UnreadableJson(FaultlineError):
    """The database holds JSON that Python cannot read."""


class JobFailed(FaultlineError):
    """Raised by `result()`: the job failed."""


class JobCancelled(FaultlineError):
    """Raised by `result()`: the job was cancelled."""


class ResultTimeout(FaultlineError, TimeoutError):
    """Raised by `result()`: the job did not end within the timeout."""


class StepFailed(FaultlineError):
    """A step used up its tries. Every run of the program gets this error, so that it goes the same way each time.

    `kind` is the name of the class of the step's own exception. That exception is not the cause: later runs do not have it.
    A step that declares it, `@app.step(raises=(Declined,))`, raises it as itself, in every run. A note says where the step
    raised it.
    """

    def __init__(self, message: str, *, step: str, kind: str) -> None:
        super().__init__(message)
        self.step = step
        self.kind = kind


class ChildFailed(FaultlineError):
    """Jobs that a flow called failed or were cancelled. `errors` has the error of each by its index."""

    def __init__(self, message: str, *, errors: dict[int, str] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or {}


class SignalTimeout(FaultlineError, TimeoutError):
    """No signal came within the timeout of `receive`."""


class FlowTooLong(FaultlineError):
    """A job has recorded as many calls, or as large results, as one job may."""


class EmbeddedError(FaultlineError):
    """The embedded PostgreSQL could not be started, stopped or found."""


class PostgresNotFound(EmbeddedError):
    """There are no PostgreSQL binaries; the message lists every way to provide them."""


@contextmanager
def declaring(what: str | None = None) -> Iterator[None]:
    """Around the checks of a declaration in code, which are those of a submission: `JobRejected` becomes `ConfigError`.

    :param what: What is declared, for the message.
    """
    try:
        yield
    except JobRejected as error:
        raise ConfigError(str(error) if what is None else f"{what}: {error}") from error.__cause__
