"""Translate psycopg's errors into ours."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

import psycopg

from faultline.core import errors
from faultline.core.settings import without_password
from faultline.store.connection.connecting import InvalidDsn, NoConnection
from faultline.store.install import migrate, rights

if TYPE_CHECKING:
    from collections.abc import Callable


class translated(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a word: `with translated():`
    """Translate psycopg's errors into ours. Errors that we have no class for pass unchanged."""

    def __init__(self, dsn: str = "") -> None:
        self._dsn = dsn

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Error):
            ours = _translate(error, without_password(self._dsn))
            if ours is not None:
                # libpq's message about an invalid DSN may contain its password: keep it out of the traceback.
                raise ours from None if isinstance(ours, errors.ConfigError) else error


def ours_for(error: psycopg.Error) -> errors.FaultlineError | None:
    """Our error for one of a caller's session; None: we have no class for it."""
    return _translate(error, "")


def connection_was_lost(error: BaseException | None) -> bool:
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
    )


def is_about_the_moment(error: BaseException) -> bool:
    """Whether the same call may succeed later: the server is unavailable, or there was a lock or a conflict."""
    passing = errors.DatabaseUnavailable | errors.DatabaseBusy | errors.StatementTimeout | errors.OutcomeUnknown
    return isinstance(error, passing | psycopg.OperationalError | psycopg.InternalError)


#: Data exceptions, violated constraints, exceeded limits, and errors of Faultline's own functions.
_ABOUT_DATA = ("22", "23", "54", "FL")


def is_about_data(error: BaseException) -> bool:
    """Whether the database would refuse the same values again. After any other error, send again later.

    Locks, cancelled statements, conflicts, migrations, full disks, standbys and unknown errors say nothing about a job. So
    only a data error may decide how a job ends.
    """
    if isinstance(error, errors.FaultlineError):
        return (error.sqlstate or "").startswith(_ABOUT_DATA) or isinstance(error, errors.UnreadableJson)
    if isinstance(error, psycopg.Error):
        by_psycopg = isinstance(error, psycopg.DataError | psycopg.IntegrityError)
        return by_psycopg or (error.sqlstate or "").startswith(_ABOUT_DATA)
    return isinstance(error, UnicodeError)


def is_ours_to_mend(error: BaseException) -> bool:
    """Whether an error is a fault of this program, which comes again with every call. What the server says, and what the
    network or the machine does, may pass.
    """
    if isinstance(error, errors.FaultlineError):
        return isinstance(error, errors.ConfigError)
    if isinstance(error, psycopg.Error):
        return error.sqlstate is None and not isinstance(error, psycopg.OperationalError)
    return not isinstance(error, OSError | MemoryError)


#: The detail of an error: a call stands in the history as another one than the program makes now.
PROGRAM_CHANGED = "program_changed"


def is_about_the_program(error: BaseException) -> bool:
    """Whether a verb found that the program of a job has changed. Its message may quote names that say anything."""
    cause = error.__cause__ if isinstance(error, errors.JobRejected) else error
    return isinstance(cause, psycopg.Error) and cause.diag.message_detail == PROGRAM_CHANGED


def _translate(error: psycopg.Error, dsn: str) -> errors.FaultlineError | None:
    message = error.diag.message_primary or str(error).strip()
    if error.sqlstate in _OURS:
        return _OURS[error.sqlstate](error, message)
    schema_missing = migrate.missing(error)
    if schema_missing is not None:
        return schema_missing
    match error:
        case psycopg.errors.UndefinedFunction() | psycopg.errors.UndefinedColumn():
            return errors.SchemaBehind(
                f"{message}; run: faultline migrate. If the schema is up to date, an argument has a wrong type"
            )
        case psycopg.DataError() if error.sqlstate is not None:
            detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
            return errors.JobRejected(f"PostgreSQL cannot store these values: {message}{detail}")
        case NoConnection():
            return errors.DatabaseUnavailable(f"could not connect to {dsn} in time; nothing was sent: {message}")
        # Read-only: a standby that is not promoted yet.
        case psycopg.OperationalError() | psycopg.errors.ReadOnlySqlTransaction() if (
            error.sqlstate is None or error.sqlstate.startswith(("08", "25006", "28", "3D", "53", "57P"))
        ):
            return errors.DatabaseUnavailable(f"cannot use {dsn or 'the database'}: {message}")
        case InvalidDsn():
            # Show neither the text nor libpq's quotes of it: we cannot tell where its password is.
            is_uri = dsn.startswith(("postgresql://", "postgres://"))
            about = _QUOTED.sub("", message) if is_uri or not _QUOTED_SIGN.search(message) else _NO_PAIRS
            if _OF_SQLALCHEMY.match(dsn):
                about = "it is a URL of SQLAlchemy. Take the driver out: postgresql:// in place of postgresql+DRIVER://"
            return errors.ConfigError(f"invalid DSN: {about}; {_DSN_FORM}")
    return None


#: libpq writes in the language of the program's locale, with the quotation marks of that language.
_QUOTED = re.compile(r'\s*:?\s*["«»„“”].*["«»„“”]', re.DOTALL)
#: What stands between NAME and VALUE, of which libpq says that it is missing.
_QUOTED_SIGN = re.compile(r'["«»„“”]\s*=\s*["«»„“”]')


_DOCTOR = "run faultline doctor, which names the rights that this login lacks"
_OF_SQLALCHEMY = re.compile(r"postgres(ql)?\+\w+://")
_NO_PAIRS = "it does not begin with postgresql://, and a part of it is not NAME=VALUE"
_DSN_FORM = (
    "the text is not shown, as it may hold a password. Write postgresql://USER:PASSWORD@HOST/DATABASE, percent-encode "
    "special characters of the password, or: host=HOST dbname=DATABASE user=USER password=PASSWORD"
)


def _stale(error: psycopg.Error, message: str) -> errors.StaleLease:
    detail = json.loads(error.diag.message_detail or "{}")
    return errors.StaleLease(message, reason=detail.get("reason"), current_token=detail.get("current_token"))


def _busy(error: psycopg.Error, message: str) -> errors.DatabaseBusy:
    text = _with_hint(error, message)
    ours = errors.DatabaseBusy(f"{text}; nothing was written{'' if 'again' in text else ', try again'}")
    ours.sqlstate = error.sqlstate
    return ours


def _not_found(error: psycopg.Error) -> type[errors.FaultlineError]:
    """The class for what is not there, by the detail of the error: a job, unless it says otherwise."""
    kinds = {"schedule": errors.ScheduleNotFound, "budget": errors.BudgetNotFound}
    return kinds.get(error.diag.message_detail or "", errors.JobNotFound)


_OURS: dict[str | None, Callable[[psycopg.Error, str], errors.FaultlineError]] = {
    "FL001": _stale,
    "FL002": lambda error, message: errors.IllegalTransition(_with_hint(error, message)),
    "FL003": lambda error, message: errors.KeyConflict(_with_hint(error, message)),
    "FL004": lambda error, message: _not_found(error)(_with_hint(error, message)),
    "FL006": lambda error, message: errors.FenceBroken(_with_hint(error, message)),
    "FL007": lambda error, message: errors.LimitReached(_with_hint(error, message)),
    "42501": lambda error, message: errors.PermissionDenied(f"{message}; {rights.advice(error) or _DOCTOR}"),
    "57014": lambda _, message: errors.StatementTimeout(f"{message}; nothing was written"),
    "40001": _busy,
    "40P01": _busy,
    "55P03": _busy,
    "FL005": lambda error, message: errors.JobRejected(_with_hint(error, message)),
}


def _with_hint(error: psycopg.Error, message: str) -> str:
    hint = error.diag.message_hint
    if not hint:
        return message
    return f"{message}; {hint}" if hint[0].islower() else f"{message}. {hint}"
