"""Cursors: places in lists, as text that is nobody's business. One that we did not make is refused, not believed."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.core.errors import UnreadableJson
from faultline.store import jsontext
from faultline.web.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH_MAX = 400


def encode(kind: str, place: Sequence[Any]) -> str:
    """A place in a list of this kind."""
    words = [value.isoformat() if isinstance(value, datetime) else str(value) for value in place]
    return base64.urlsafe_b64encode(jsontext.encode([kind, *words], "cursor").encode()).rstrip(b"=").decode()


def decode(text: str, kind: str, types: Sequence[str]) -> tuple[Any, ...]:
    """The place. Every value is read as the type that it must have: nothing else can come of a forged one."""
    try:
        padded = text[:_LENGTH_MAX] + "=" * (-len(text) % 4)
        found_kind, *values = jsontext.decode(base64.b64decode(padded, altchars=b"-_", validate=True).decode())
        place = [_READERS[type_](value) for type_, value in zip(types, values, strict=True)]
        _same(found_kind, kind)
    except (ValueError, TypeError, AttributeError, OverflowError, UnreadableJson) as error:
        raise Problem(
            400,
            "BadCursor",
            "This is no cursor of this list.",
            next_step="Leave it out to begin at the start, with the same filters for every page.",
        ) from error
    return tuple(place)


def _same(found: object, wanted: str) -> None:
    """A place in another list is none in this one."""
    if found != wanted:
        raise ValueError(found)


def _time(word: str) -> datetime:
    time = datetime.fromisoformat(word)
    if time.tzinfo is None:
        raise ValueError(word)
    return time


def _small(word: str) -> int:
    number = int(word)
    if not -32768 <= number < 32768:  # noqa: PLR2004 - PostgreSQL's smallint
        raise ValueError(word)
    return number


_READERS: dict[str, Any] = {"uuid": UUID, "timestamptz": _time, "smallint": _small}
