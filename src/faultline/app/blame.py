"""Whose doing was an error in a job's own session? What the database does must not count against the job.

The class of an exception does not tell: a task's own connection to another database raises the same ones. So each error is
noted where the session raised it, and judged when its transaction has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

import psycopg

from faultline.core.errors import FaultlineError
from faultline.store.surroundings import LOCK_SECONDS
from faultline.store.translation import connection_was_lost, is_about_data

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Lost connections, a standby, sessions that were idle for too long (as while another task blocks the event loop),
#: conflicts, too few resources, a server that goes down, a disk that fails, a snapshot that is too old, an internal error.
_BY_THE_SERVER = ("08", "25006", "25P03", "25P04", "40001", "40003", "40P01", "53", "57P", "58", "72", "XX")
_CANCELLED, _NO_LOCK, _NOT_ALLOWED, ABORTED = "57014", "55P03", "42501", "25P02"


class Blame(Enum):
    TASK = auto()
    DATABASE = auto()
    #: The server uses one SQLSTATE for a statement that somebody cancelled and for one that ran into its own time limit.
    #: Only the words differ, and they are in the server's language.
    ASK = auto()
    #: A statement of ours was not allowed: either the task has taken another role, or the login has lost a right.
    ASK_FOR_RIGHTS = auto()


@dataclass(frozen=True, slots=True)
class Mishap:
    """An error of the job's session. `seconds`: how long its statement took, or longer."""

    error: BaseException
    seconds: float
    #: Of a statement that the engine sent, not the task.
    ours: bool = False

    @property
    def blame(self) -> Blame:
        sqlstate = getattr(self.error, "sqlstate", None) or ""
        if self.ours:
            if sqlstate == _NOT_ALLOWED:
                return Blame.ASK_FOR_RIGHTS
            # Whatever it was, the task has not written this statement.
            return Blame.TASK if is_about_data(self.error) else Blame.DATABASE
        if connection_was_lost(self.error) or sqlstate.startswith(_BY_THE_SERVER):
            return Blame.DATABASE
        if sqlstate == _NO_LOCK and self.seconds >= LOCK_SECONDS:
            # Our limit. One that was reached sooner, or `nowait`, is the task's own wish.
            return Blame.DATABASE
        return Blame.ASK if sqlstate == _CANCELLED else Blame.TASK


def words(error: BaseException | None) -> str | None:
    """What the server says of an error, in its language."""
    return error.diag.message_primary if isinstance(error, psycopg.Error) else None


def is_caused_by(error: BaseException, causes: Sequence[BaseException]) -> bool:
    """Whether it is one of these, or was raised because of one; for a group, whether all of it was."""
    return _is_caused_by(error, dict.fromkeys(map(id, causes), True))


def _is_caused_by(error: BaseException, known: dict[int, bool]) -> bool:
    """What is known of each is written down, and of those that are being looked at that they are not: errors can go round in
    a circle. One that is taken out of its group and raised again was raised because of that group, in which it is.
    """
    chain: list[int] = []
    found: BaseException | None = error
    result = False
    while found is not None and id(found) not in known:
        known[id(found)] = False
        chain.append(id(found))
        if isinstance(found, BaseExceptionGroup):
            result = all(_is_caused_by(part, known) for part in found.exceptions)
            break
        found = _reason(found)
    else:
        result = found is not None and known[id(found)]
    known.update(dict.fromkeys(chain, result))
    return result


def of_session(error: BaseException) -> list[psycopg.Error | FaultlineError]:
    """What a database may have raised among the reasons of an error."""
    seen: set[int] = set()
    given: list[psycopg.Error | FaultlineError] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, psycopg.Error | FaultlineError):
            given.append(found)
        elif isinstance(found, BaseExceptionGroup):
            waiting.extend(found.exceptions)
        waiting.append(_reason(found))
    return given


def _reason(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
