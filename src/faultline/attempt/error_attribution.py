"""Who caused an error in a job's own session: the task or the database? The database's errors do not count against the job.

The class of an exception does not say: a task's own connection to another database raises the same ones. So each error is
noted where the session raised it, and judged when its transaction has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.core.errors import FaultlineError
from faultline.history.ending import cause_of, is_member
from faultline.store.connection.session_settings import IDLE_SECONDS, LOCK_SECONDS
from faultline.store.external_sessions.translation import as_psycopg
from faultline.store.translation import connection_was_lost, is_about_data

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Lost connections, a standby, conflicts, too few resources, a server that goes down, a disk that fails, a snapshot that is
#: too old, an internal error.
_BY_THE_SERVER = ("08", "25006", "40001", "40003", "40P01", "53", "57P", "58", "72", "XX")
_CANCELLED, _NO_LOCK, _NOT_ALLOWED, ABORTED = "57014", "55P03", "42501", "25P02"
_IDLE, _TOO_LONG = "25P03", "25P04"


class Blame(Enum):
    TASK = auto()
    DATABASE = auto()
    #: The server has one SQLSTATE for a statement that somebody cancelled and for one that exceeded its own timeout. Only
    #: the messages differ, and they are in the server's language.
    ASK = auto()
    #: A statement of the engine was not allowed: the task has set another role, or the login has lost a right.
    ASK_FOR_RIGHTS = auto()


@dataclass(frozen=True, slots=True)
class Mishap:
    """An error of the job's session. `seconds`: how long its statement took at most; `age`: how old its transaction was."""

    error: BaseException
    seconds: float
    #: The engine sent the statement, not the task.
    ours: bool
    #: As the task got it: `error` of its own library.
    raised: BaseException
    age: float = 0.0

    @property
    def blame(self) -> Blame:
        sqlstate = getattr(self.error, "sqlstate", None) or ""
        if sqlstate == _TOO_LONG:
            # Our sessions have no `transaction_timeout`: the task has set it, whichever statement it struck.
            return Blame.TASK
        if sqlstate == _IDLE:
            # The engine's limit, as while another task blocks the event loop. A shorter one is the task's own.
            return Blame.DATABASE if self.age >= IDLE_SECONDS else Blame.TASK
        if self.ours:
            if sqlstate == _NOT_ALLOWED:
                return Blame.ASK_FOR_RIGHTS
            # The task did not write this statement.
            return Blame.TASK if is_about_data(self.error) else Blame.DATABASE
        if connection_was_lost(self.error) or sqlstate.startswith(_BY_THE_SERVER):
            return Blame.DATABASE
        if sqlstate == _NO_LOCK and self.seconds >= LOCK_SECONDS:
            # The engine's limit. A shorter one, or `nowait`, is the task's own.
            return Blame.DATABASE
        return Blame.ASK if sqlstate == _CANCELLED else Blame.TASK


def words(error: BaseException | None) -> str | None:
    """The server's message, in its language."""
    return error.diag.message_primary if isinstance(error, psycopg.Error) else None


def is_caused_by(error: BaseException, causes: Sequence[BaseException]) -> bool:
    """Whether it is one of these, or was raised because of one; for a group, whether all its members were."""
    return _is_caused_by(error, dict.fromkeys(map(id, causes), True))


def _is_caused_by(error: BaseException, known: dict[int, bool]) -> bool:
    """`known` holds the result for each error, False while it is being computed: errors can form a circle. An error that is
    taken out of its group and raised again has that group, and so itself, as its cause.
    """
    chain: list[int] = []
    found: BaseException | None = error
    result = False
    while found is not None and id(found) not in known:
        known[id(found)] = False
        chain.append(id(found))
        if isinstance(found, BaseExceptionGroup):
            result = all(_is_caused_by(part, known) for part in found.exceptions) or _was_raised_for(found, known)
            break
        found = cause_of(found)
    else:
        result = found is not None and known[id(found)]
    known.update(dict.fromkeys(chain, result))
    return result


def _was_raised_for(group: BaseExceptionGroup[Any], known: dict[int, bool]) -> bool:
    """Whether the group itself was raised because of one. What a task group tells of its tasks is in the group."""
    cause = cause_of(group)
    return cause is not None and not is_member(cause, group) and _is_caused_by(cause, known)


def of_session(error: BaseException) -> list[BaseException]:
    """The causes of an error that a database may have raised."""
    seen: set[int] = set()
    given: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, FaultlineError) or as_psycopg(found) is not None:
            given.append(found)
        elif isinstance(found, BaseExceptionGroup):
            waiting.extend(found.exceptions)
        waiting.append(cause_of(found))
    return given
