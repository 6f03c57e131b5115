"""Decide after a lost answer: send again where that is safe, otherwise raise that the outcome is unknown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.core import errors
from faultline.store.connection.connecting import NoConnection
from faultline.store.connection.deadline import NoAnswer
from faultline.store.translation import connection_was_lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.store.connection.deadline import Deadline
    from faultline.store.statement import Statement

_SENDS_MAX = 3
#: The session is shared after all (a pooler), or its schema has changed. Nothing was run.
_UNPREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)


class Answer(contextlib.AbstractContextManager[None]):
    """Wraps each send: suppresses the loss of a connection as long as the statements may be sent again.

    Once something was sent and no answer came, every further failure means that the outcome is unknown, even a failure to
    connect, which by itself would mean that nothing was written.
    """

    def __init__(self, statements: Sequence[Statement[Any]], deadline: Deadline) -> None:
        self.deadline = deadline
        self._statements = statements
        self._repeatable = all(statement.repeatable for statement in statements)
        self._sends_left = _SENDS_MAX
        self._unanswered = False
        #: How often the connection was lost, and whether silently: then the other connections may be lost too.
        self.losses, self.silent = 0, False
        #: The server rolled it back because of another transaction. The connections are fine.
        self.rolled_back = False
        #: A function was missing: a migration may just have replaced it. Nothing was run.
        self._missed = False
        #: The session's prepared statements are lost or outdated.
        self.unprepared = False

    def to_be_sent(self) -> bool:
        self._sends_left -= 1
        return self._sends_left >= 0

    def params(self, statement: Statement[Any]) -> tuple[Any, ...]:
        if statement.params_now is not None:
            return statement.params_now()
        return statement.params_again if self._unanswered and statement.params_again else statement.params

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.rolled_back = isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected)
        if self.rolled_back:
            return self._sends_left > 0
        if isinstance(error, _UNPREPARED) and not self.unprepared and self._sends_left > 0:
            self.unprepared = True
            return True
        if isinstance(error, psycopg.errors.UndefinedFunction) and not self._missed and self._sends_left > 0:
            self._missed = True
            return True
        never_sent = isinstance(error, NoConnection)
        if not never_sent and not connection_was_lost(error):
            return False
        if never_sent and not self._unanswered:
            return False
        self._unanswered = True
        self.losses, self.silent = self.losses + 1, isinstance(error, NoAnswer)
        if not never_sent and self._repeatable and self._sends_left > 0 and not self.deadline.passed:
            return True
        raise unanswered(self._statements, error) from error


def unanswered(statements: Sequence[Statement[Any]], error: BaseException | None) -> errors.FaultlineError:
    names = ", ".join(sorted({statement.name for statement in statements}))
    why = f"{error if isinstance(error, NoAnswer) else 'the connection was lost'} while {names} ran"
    if all(statement.reads for statement in statements):
        return errors.DatabaseUnavailable(f"{why}; it only reads. Try again, or look for a lock with: faultline doctor")
    return errors.OutcomeUnknown(
        f"{why}; it may or may not have been committed. Check the job, or send an enqueue again with the same id"
    )
