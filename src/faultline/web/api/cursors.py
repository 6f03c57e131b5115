"""Cursors: positions in lists, as text. An invalid one is refused.

A cursor has a kind and the values by which its list is ordered, written so that a pattern in /openapi.json can describe
them: times are microseconds since 1970.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.core.bounds import GROUP_LENGTH_MAX, SIGNAL_NAME_LENGTH_MAX
from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NEXT_STEP = "Omit it to start from the beginning, and use the same filters for every page."
_START = datetime(1970, 1, 1, tzinfo=UTC)
#: Up to the last year.
_TIME = r"(0|[1-9][0-9]{0,16}|1[0-9]{17}|2[0-4][0-9]{16}|25[0-2][0-9]{15}|253[0-3][0-9]{14})"
_UUID = r"[0-9a-f]{32}"
_SMALL = r"(0|-?[1-9][0-9]{0,3})"
#: By id, by the end of failed and cancelled jobs, and by turn.
PATTERN = rf"^(id~{_UUID}|end~{_TIME}~{_UUID}|turn~{_SMALL}~{_TIME}~{_UUID})$"
FAILED_PATTERN = rf"^failed~{_TIME}~{_UUID}$"
#: Of jobs that are cancelled together.
UNENDED_PATTERN = rf"^unended~{_UUID}$"
_NUMBER = r"(0|[1-9][0-9]{0,17})"
#: A character that PostgreSQL can store, as six hexadecimal digits: no null byte and no surrogates.
_CHARACTER = (
    r"(0000(0[1-9a-f]|[1-9a-f][0-9a-f])|00(0[1-9a-f]|[1-9a-cef][0-9a-f]|d[0-7])[0-9a-f]{2}"
    r"|0[1-9a-f][0-9a-f]{4}|10[0-9a-f]{4})"
)
#: Of what waits: signals by their names, all else by the job.
WAITING_PATTERN = rf"^(signal~{_CHARACTER}{{1,{SIGNAL_NAME_LENGTH_MAX}}}~{_TIME}~{_NUMBER}|job~{_UUID}~{_NUMBER})$"
#: Of groups: where the window begins, the wait, and the group.
_GROUP = rf"{_CHARACTER}{{0,{GROUP_LENGTH_MAX}}}"
GROUP_PATTERN = rf"^group~{_GROUP}~{_TIME}~{_GROUP}$"
_PATTERNS = (PATTERN, FAILED_PATTERN, UNENDED_PATTERN, WAITING_PATTERN, GROUP_PATTERN)


def encode(kind: str, position: Sequence[Any]) -> str:
    """The text of a position in a list of this kind."""
    return "~".join([kind, *(_word(value) for value in position)])


def decode(text: str, kind: str, types: Sequence[str]) -> tuple[Any, ...]:
    """The position. Every value is parsed as its type, so a forged cursor can do no harm."""
    if not any(re.fullmatch(pattern, text) for pattern in _PATTERNS):
        raise Problem(400, "BadCursor", "Invalid cursor.", next_step=_NEXT_STEP)
    found, *words = text.split("~")
    if found != kind:
        raise Problem(409, "OtherList", "The cursor belongs to a list with other filters.", next_step=_NEXT_STEP)
    return tuple(_READERS[type_](word) for type_, word in zip(types, words, strict=True))


def _word(value: Any) -> str:
    if isinstance(value, datetime):
        return str((value - _START) // timedelta(microseconds=1))
    if isinstance(value, str):
        return "".join(f"{ord(character):06x}" for character in value)
    return value.hex if isinstance(value, UUID) else str(value)


def _text(word: str) -> str:
    return "".join(chr(int(word[start : start + 6], 16)) for start in range(0, len(word), 6))


_READERS: dict[str, Callable[[str], Any]] = {
    "uuid": UUID,
    "timestamptz": lambda word: _START + timedelta(microseconds=int(word)),
    "smallint": int,
    "bigint": int,
    "text": _text,
}
