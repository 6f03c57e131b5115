"""Every error Faultline raises. Each message says what happened, to what, and what to do next.

FaultlineError
├── ConfigError                 no database was named, or what was given makes no sense
│   └── Unprepared              it makes sense, and what it needs is missing or taken: a port, a package, a key, a yes
├── DatabaseUnavailable         the server could not be reached or refused us; nothing was written
├── PermissionDenied  (42501)   the login lacks a right in the database; nothing was written
├── StatementTimeout            the database gave up on a statement that took too long; nothing was written
├── OutcomeUnknown              the answer to a write was lost; it may or may not have happened
├── SchemaError
│   ├── SchemaMissing           `faultline migrate` was never run here
│   ├── SchemaBehind            the database's protocol is older than this build's
│   ├── SchemaAhead             the database no longer serves builds as old as this one
│   ├── SchemaAltered           the database holds another text than this build under the same number
│   └── MigrationBlocked        `faultline migrate` got no lock in time; nothing was changed
├── RecoverBlocked              `faultline recover` got no lock in time; nothing was changed
├── JobRejected       (FL005)   bad input; nothing was enqueued
│   └── ResultRejected          the result of a job or of one of its steps cannot be stored
├── KeyConflict       (FL003)   the same key or id came with another task or other arguments
├── StaleLease        (FL001)   the lease is lost; nothing was written
├── FenceBroken       (FL006)   the job's transaction was ended from inside; the job is not completed
├── IllegalTransition (FL002)   the job is not in a state that allows this
├── JobNotFound       (FL004)   no such job
├── UnreadableJson              the database holds JSON that Python cannot read
├── JobFailed                   `result()` of a job that failed
├── JobCancelled                `result()` of a job that was cancelled
├── ResultTimeout               `result()` waited long enough
└── EmbeddedError
    └── PostgresNotFound        no PostgreSQL binaries; the message lists every way to provide them
"""

from __future__ import annotations

from typing import ClassVar


class FaultlineError(Exception):
    """The root: `except FaultlineError` catches all of ours and nothing else."""

    #: What the database raises for the same failure, for programs in other languages.
    sqlstate: ClassVar[str | None] = None


class ConfigError(FaultlineError):
    pass


class Unprepared(ConfigError):
    pass


class DatabaseUnavailable(FaultlineError):
    pass


class PermissionDenied(FaultlineError):
    sqlstate = "42501"


class StatementTimeout(FaultlineError):
    pass


class OutcomeUnknown(FaultlineError):
    pass


class SchemaError(FaultlineError):
    pass


class SchemaMissing(SchemaError):
    pass


class SchemaBehind(SchemaError):
    pass


class SchemaAhead(SchemaError):
    pass


class SchemaAltered(SchemaError):
    pass


class MigrationBlocked(SchemaError):
    pass


class RecoverBlocked(FaultlineError):
    pass


class JobRejected(FaultlineError, ValueError):
    sqlstate = "FL005"


class ResultRejected(JobRejected):
    pass


class KeyConflict(FaultlineError):
    sqlstate = "FL003"


class StaleLease(FaultlineError):
    """A lost lease. `reason` is one of the refusal reasons; `current_token` is the newest epoch known, if any."""

    sqlstate = "FL001"

    def __init__(self, message: str, *, reason: str | None = None, current_token: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.current_token = current_token


class FenceBroken(FaultlineError):
    sqlstate = "FL006"


class IllegalTransition(FaultlineError):
    sqlstate = "FL002"


class JobNotFound(FaultlineError, LookupError):
    sqlstate = "FL004"


class UnreadableJson(FaultlineError):
    pass


class JobFailed(FaultlineError):
    pass


class JobCancelled(FaultlineError):
    pass


class ResultTimeout(FaultlineError, TimeoutError):
    pass


class EmbeddedError(FaultlineError):
    pass


class PostgresNotFound(EmbeddedError):
    pass
