"""Errors as answers (RFC 9457, application/problem+json): a code for programs, a sentence for people, and what to do next.

Raise a `Problem` anywhere below the application. `problem_of` turns errors of `core/errors.py` into one: `code` is the name
of the error, `sqlstate` the database's. Any other exception is a 500 without details.
"""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from faultline.core import errors
from faultline.store import jsontext


class Problem(errors.FaultlineError):
    """A refusal. `more`: further members of the response; `headers`: further headers."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        next_step: str = "",
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.next_step = next_step
        self.headers = headers or {}
        self.more = more

    @property
    def title(self) -> str:
        """The code as words: `BodyTooLarge` is "Body too large"."""
        words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in self.code).strip()
        return words[:1].upper() + words[1:]

    def members(self) -> dict[str, Any]:
        facts = {"type": "about:blank", "title": self.title, "status": self.status, "code": self.code, "detail": self.detail}
        if self.next_step:
            facts["next_step"] = self.next_step
        return facts | self.more

    def response(self) -> Response:
        body = jsontext.encode(self.members(), "problem")
        return Response(body, self.status, {"Cache-Control": "no-store", **self.headers}, "application/problem+json")


#: The header with the time since when the database is away, for the script of an open page.
AWAY_SINCE = "Faultline-Away-Since"
_AWAY = "The database is unavailable; nothing was written."
#: For errors whose text is for the operator: status, message for the caller, and what to do.
_ANSWERS: dict[type[errors.FaultlineError], tuple[int, str, str]] = {
    errors.DatabaseUnavailable: (503, _AWAY, "Send the request again in a few seconds."),
    errors.SchemaError: (503, "The database's schema does not match this server.", "Run `faultline migrate`."),
    errors.PermissionDenied: (
        503,
        "The server's login lacks a privilege in the database; nothing was written.",
        "Look at the server's log, or run `faultline doctor`.",
    ),
    errors.StatementTimeout: (
        504,
        "The database cancelled the statement because it took too long; nothing was written.",
        "Request less at once, or try again later.",
    ),
    errors.DatabaseBusy: (
        503,
        "Another transaction held what this one needs; nothing was written.",
        "Send the request again in a few seconds.",
    ),
    errors.OutcomeUnknown: (
        503,
        "The connection to the database was lost during the write; it may or may not have been committed.",
        "Send the request again with the same Idempotency-Key, or check the job.",
    ),
    errors.UnreadableJson: (500, "The database holds JSON that this server cannot read.", "Read the job with SQL."),
    errors.ConfigError: (500, "The server is misconfigured.", "See the server's log."),
}
#: For errors about what the caller sent or named: their own text is the message.
_STATUS: dict[type[errors.FaultlineError], tuple[int, str]] = {
    errors.JobRejected: (422, "Correct what the message names, and send it again."),
    errors.KeyConflict: (409, "Use a new Idempotency-Key for other jobs."),
    errors.IllegalTransition: (409, "Check the job's state first."),
    errors.JobNotFound: (404, "Search the list of jobs."),
    errors.ScheduleNotFound: (404, "See the list of schedules."),
    errors.BudgetNotFound: (404, "See the list of budgets."),
    errors.LimitReached: (409, "Wait until the job has received some of them."),
}
_RETRY_SECONDS = "2"


def problem_of(error: BaseException) -> Problem:
    """The problem for an exception."""
    if isinstance(error, Problem):
        return error
    for kind, (status, detail, next_step) in _ANSWERS.items():
        if isinstance(error, kind):
            retry = {"Retry-After": _RETRY_SECONDS} if status in (503, 504) else None
            return Problem(status, type(error).__name__, detail, next_step=next_step, headers=retry)
    for known, (status, next_step) in _STATUS.items():
        if isinstance(error, known):
            return Problem(status, type(error).__name__, str(error), next_step=next_step, sqlstate=known.sqlstate)
    return Problem(500, "InternalError", "Internal server error.", next_step="See the server's log.")
