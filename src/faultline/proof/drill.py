"""What every drill gives: its trace, what it asserted, and a verdict. A drill that shows nothing has failed."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true after the drill, and what was found."""

    claim: str
    found: object
    holds: bool


@dataclass(slots=True)
class Verdict:
    drill: str
    trace: list[dict[str, Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.trace) and bool(self.checks) and all(check.holds for check in self.checks)

    def expect(self, claim: str, found: object, wanted: object) -> None:
        self.checks.append(Check(claim, found, found == wanted))


@contextlib.contextmanager
def tracing(verdict: Verdict) -> Iterator[None]:
    """Collect every event that is logged meanwhile. The trace of a drill is the log that production would write."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = getattr(record, "faultline_event", None)
            if event is not None:
                verdict.trace.append({"event": event, **getattr(record, "faultline_fields", {})})

    events = logging.getLogger("faultline.events")
    collector, level = Collect(), events.level
    events.addHandler(collector)
    events.setLevel(logging.INFO)
    try:
        yield
    finally:
        events.removeHandler(collector)
        events.setLevel(level)
