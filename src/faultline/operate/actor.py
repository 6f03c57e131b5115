"""Who operates and why: checked on entry, logged, shown in one way. The database checks again: see `signature.sql`."""

from __future__ import annotations

import os
import pwd
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from faultline.core import events
from faultline.core.bounds import BY_LENGTH_MAX, REASON_LENGTH_MAX
from faultline.core.checks import hides
from faultline.core.errors import JobRejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.events import EventField
    from faultline.core.model import Json
    from faultline.store.statement import Rows, Statement

T = TypeVar("T")

#: A reason may have several lines.
_LINES = re.compile("[\t\n\r\u2028\u2029]")


def check(by: str | None, reason: str | None) -> None:
    if by is not None:
        _check_length("by", by, 1, BY_LENGTH_MAX)
        if hides(by):
            raise JobRejected("`by` contains control characters; use plain text")
    check_reason(reason)


def check_reason(reason: str | None) -> None:
    if reason is not None:
        _check_length("reason", reason, 0, REASON_LENGTH_MAX)
        if hides(_LINES.sub(" ", reason)):
            raise JobRejected("`reason` contains control characters; use plain text")


def _check_length(name: str, value: str, least: int, most: int) -> None:
    if not isinstance(value, str) or len(value) < least:  # type: ignore[redundant-expr]  # callers without a type checker
        raise JobRejected(f"{name} must be text of {least} to {most} characters, not {value!r}")
    if len(value) > most:
        raise JobRejected(f"{name} has {len(value)} characters; at most {most} are allowed")


def plain(name: str) -> str:
    """A user's name without characters that the database would refuse."""
    return "".join("?" if hides(letter) else letter for letter in name)


def this_user() -> str:
    """The user of this process, for commands. Not from the environment, which anybody can set."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may have no name for its user
        user = f"user {os.getuid()}"
    return plain(f"{user}@{socket.gethostname()}")[: BY_LENGTH_MAX - 20] + " (command line)"


def signature(detail: Json) -> str:
    """Who did it, for people. The login comes last, so that nobody can forge it in their name."""
    if not isinstance(detail, dict) or not detail.get("by"):
        return ""
    by, login = detail["by"], detail.get("login")
    return f"{by}" if by == login else f"{by} (login {login})"


def logged(
    statement: Statement[T], event: str, *, done: Callable[[T], bool] = lambda _: True, **fields: EventField
) -> Statement[T]:
    """Log an operation when its answer is read: then it was done, whether a blocking or an async database ran it.

    `done`: whether the answer means that something was done.
    """

    def read(rows: Rows) -> T:
        answer = statement.read(rows)
        if done(answer):
            events.emit(event, level=None, **fields)
        return answer

    return replace(statement, read=read)
