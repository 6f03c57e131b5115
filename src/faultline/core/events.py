"""Events as JSON lines, through the standard `logging` package. Silent unless configured; argument values are never logged.

The names of events and of their fields are part of the contract: programs read them.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO
from uuid import UUID

_logger = logging.getLogger("faultline.events")
logging.getLogger("faultline").addHandler(logging.NullHandler())

EventField = str | int | float | bool | UUID | None


def emit(event: str, *, level: int = logging.INFO, **fields: EventField) -> None:
    """Log one event. `fields` are facts about jobs and leases, never arguments or results."""
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s", event, extra={"faultline_event": event, "faultline_fields": fields})


def are_detailed() -> bool:
    """Whether anyone wants to know what every single job does. Asked once before a loop over many."""
    return _logger.isEnabledFor(logging.DEBUG)


def emit_detail(event: str, **fields: EventField) -> None:
    """Log what every single job does. At DEBUG: ten thousand lines a second are nobody's wish by default."""
    emit(event, level=logging.DEBUG, **fields)


class JsonLines(logging.Formatter):
    """One JSON object a line: the time, the event and its fields; a plain log record becomes the event `log`."""

    def __init__(self, timespec: str = "milliseconds") -> None:
        super().__init__()
        self._timespec = timespec

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec=self._timespec)
        line = {"at": at, "level": record.levelname.lower()}
        event = getattr(record, "faultline_event", None)
        if event is None:
            line |= {"event": "log", "logger": record.name, "message": record.getMessage()}
            if record.exc_info:
                line["error"] = self.formatException(record.exc_info)
        else:
            line |= {"event": event, **getattr(record, "faultline_fields", {})}
        return json.dumps(line, default=str)


def log_events(
    stream: TextIO | None = None, *, level: int = logging.INFO, timespec: str = "milliseconds"
) -> logging.Handler:
    """Write events as JSON lines to a stream (standard error by default). Returns the handler, to be removed again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(timespec))
    events = logging.getLogger("faultline")
    events.addHandler(handler)
    events.setLevel(level)
    return handler
