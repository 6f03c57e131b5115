"""Parse what users type: ids, durations, arguments. An error says how to write it."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from faultline.core.errors import ConfigError, JobNotFound, UnreadableJson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.store.database import Database

#: How many ids with the same prefix an error shows.
_ALIKE_SHOWN = 5
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def job_id(database: Database, text: str) -> UUID:
    """The job with this id or prefix. A whole id is not looked up."""
    from faultline.core.ids import PREFIX_DIGITS_MIN, id_range  # noqa: PLC0415 - late, so that --help is quick

    wanted = id_range(text)
    if wanted is None:
        raise ConfigError(
            f"invalid job id {text}; ids look like 0198c2e4-5d3a-7b11-9f60-2a54c0de7f01, and `faultline jobs` lists them"
        )
    least, greatest = wanted
    if least == greatest:
        return least
    if len(text.replace("-", "")) < PREFIX_DIGITS_MIN:
        raise ConfigError(f"{text} is too short for a job id: write at least its first {PREFIX_DIGITS_MIN} digits")
    from faultline.store.reads import views  # noqa: PLC0415 - late, so that --help is quick

    found = database.run(views.ids_between(least, greatest, ids_max=_ALIKE_SHOWN + 1))
    if not found:
        raise JobNotFound(f"no job id begins with {text}; it was never enqueued here, or it was pruned")
    if len(found) > 1:
        shown = ", ".join(map(str, found[:_ALIKE_SHOWN])) + (" and more" if len(found) > _ALIKE_SHOWN else "")
        raise ConfigError(f"{text} begins the ids of several jobs: {shown}; write more digits")
    return found[0]


def seconds(text: str) -> float:
    """Read `90`, `90s`, `5m`, `1h30m` or `2d`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"invalid duration {text}; write seconds, or 90s, 5m, 1h30m, 2d")
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)


def span(text: str | None) -> float | None:
    """`seconds` of an option; None: it was not given."""
    return None if text is None else seconds(text)


def cursor(text: str, kinds: Sequence[str]) -> tuple[str, ...]:
    """Where a page of jobs begins, as `cursor_text` wrote it. Each kind of list has its own."""
    # A name may contain the sign between the parts; it comes first.
    parts = tuple(text.rsplit("/", len(kinds) - 1))
    readers: dict[str, Callable[[str], Any]] = {
        "uuid": UUID,
        "timestamptz": datetime.fromisoformat,
        "smallint": int,
        "bigint": int,
        "text": str,
    }
    try:
        for part, kind in zip(parts, kinds, strict=True):
            readers[kind](part)
    except ValueError:
        raise ConfigError(f"invalid cursor {text} for this list; use the one that its last page printed") from None
    return parts


def cursor_text(cursor: Sequence[object]) -> str:
    return "/".join(part.isoformat() if isinstance(part, datetime) else str(part) for part in cursor)


def arguments(text: str) -> str:
    """The JSON text of a job's arguments; `-` reads it from standard input."""
    from faultline.store import jsontext  # noqa: PLC0415 - late, so that --help is quick

    given = sys.stdin.read() if text == "-" else text
    try:
        value = jsontext.decode_args(given)
    except UnreadableJson as error:
        raise ConfigError(f"invalid JSON in the arguments ({error}); write for example '{{\"order_id\": 42}}'") from None
    if not isinstance(value, dict):
        raise ConfigError(
            "the arguments must be a JSON object with the names of the task's parameters: '{\"order_id\": 42}'"
        )
    return jsontext.encode_args(value, "arguments")
