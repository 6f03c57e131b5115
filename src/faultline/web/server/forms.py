"""What a form sent: fields are text, and a field may be sent several times. The body is read once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from faultline.core.bounds import REASON_LENGTH_MAX
from faultline.core.errors import JobRejected
from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

_FIELDS_MAX = 2000
_KIND = "application/x-www-form-urlencoded"


class Form:
    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def one(self, name: str) -> str | None:
        """Stripped; None if it is missing or empty."""
        return next((value.strip() for field, value in self._fields if field == name and value.strip()), None)

    def words(self, name: str) -> str | None:
        """The typed reason, cut to what is stored."""
        return (self.one(name) or "")[:REASON_LENGTH_MAX] or None

    def why(self, name: str) -> str:
        """A required reason."""
        reason = self.words(name)
        if reason is None:
            raise Problem(
                422, "ReasonMissing", "A reason is required; nothing was done.", next_step="Go back and enter a reason."
            )
        return reason

    def number(self, name: str) -> float | int | None:
        """None if it is missing or empty."""
        text = self.one(name)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            raise Problem(
                422, "NoNumber", f"{name} must be a number; nothing was set.", next_step="Go back and correct it."
            ) from None
        return int(number) if number.is_integer() and abs(number) < 2**53 else number

    def all(self, name: str) -> list[str]:
        return [value for field, value in self._fields if field == name]


@contextmanager
def refused_form(code: str) -> Iterator[None]:
    """What a person typed is refused by its own name, with the way back to the form, which a browser keeps filled in."""
    try:
        yield
    except JobRejected as error:
        raise Problem(
            422,
            code,
            f"{error}. Nothing was set.".replace("..", "."),
            next_step="Go back: the form still has what you entered.",
        ) from error


async def form_of(request: Request) -> Form:
    """The form of a request; empty if there is none."""
    if not request.headers.get("content-type", "").startswith(_KIND):
        return Form([])
    try:
        fields = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise Problem(400, "BadForm", "The form cannot be read.", next_step="Load the page again.") from error
    # PostgreSQL's text cannot contain null bytes.
    return Form([(name, value.replace("\x00", "")) for name, value in fields])
