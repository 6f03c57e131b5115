"""Errors of other libraries as psycopg would raise them: what judges and translates errors knows only these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.errors import get_base_exception
from psycopg.pq import DiagnosticField

from faultline.store.resend import unanswered

if TYPE_CHECKING:
    from faultline.core.errors import FaultlineError
    from faultline.store.statement import Statement

#: Classes of errors about a connection, by name: psycopg2's, asyncpg's, and what SQLAlchemy and Django make of them.
_ABOUT_CONNECTION = {"OperationalError", "InterfaceError", "ConnectionDoesNotExistError", "InternalClientError"}
_LIBRARIES = ("asyncpg", "django", "psycopg2", "sqlalchemy")


def as_psycopg(error: BaseException) -> psycopg.Error | None:
    """The same error in psycopg's class, with its SQLSTATE, detail and hint; None: no error of a database."""
    wrapped: BaseException | None = error
    lost: BaseException | None = None
    for _ in range(5):  # SQLAlchemy wraps the driver's error twice
        if wrapped is None:
            break
        if isinstance(wrapped, psycopg.Error):
            return wrapped
        state = getattr(wrapped, "sqlstate", None) or getattr(wrapped, "pgcode", None)
        if isinstance(state, str) and _is_foreign(wrapped):
            return _made(wrapped, state)
        if _is_about_connection(wrapped):
            lost = wrapped
        wrapped = getattr(wrapped, "orig", None) or wrapped.__cause__
    return None if lost is None else psycopg.OperationalError(str(lost))


def unanswered_alone(statement: Statement[Any], error: psycopg.Error) -> FaultlineError:
    return unanswered([statement], error)


def _is_foreign(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(error).__mro__)


def _is_about_connection(error: BaseException) -> bool:
    """It has no SQLSTATE: the server did not say anything."""
    if isinstance(error, ConnectionError):
        return True
    return _is_foreign(error) and any(kind.__name__ in _ABOUT_CONNECTION for kind in type(error).__mro__)


def _made(error: BaseException, state: str) -> psycopg.Error:
    # asyncpg has the fields at the error, its wrapper in SQLAlchemy at its cause, psycopg2 at `diag`.
    cause = error.__cause__ if getattr(error.__cause__, "sqlstate", None) == state else error
    diag = getattr(error, "diag", None)
    said = {
        DiagnosticField.SQLSTATE: state,
        DiagnosticField.MESSAGE_PRIMARY: getattr(diag, "message_primary", None) or getattr(cause, "message", None),
        DiagnosticField.MESSAGE_DETAIL: getattr(diag, "message_detail", None) or getattr(cause, "detail", None),
        DiagnosticField.MESSAGE_HINT: getattr(diag, "message_hint", None) or getattr(cause, "hint", None),
    }
    info: dict[int, bytes | None] = dict.fromkeys(DiagnosticField, None)
    info |= {field: text.encode() for field, text in said.items() if isinstance(text, str)}
    try:
        kind = psycopg.errors.lookup(state)
    except KeyError:
        kind = get_base_exception(state)
    return kind(str(error), info=info)
