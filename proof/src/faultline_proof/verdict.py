"""What a drill gives: its trace, the faults that took effect, what it asserted, and a verdict.

A drill whose fault never bit has shown nothing, and has failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


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
    #: What was done to the system, and how often it took effect.
    faults: Counter[str] = field(default_factory=Counter)
    #: Why the drill cannot be played on this machine; it is then neither passed nor failed.
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        return bool(self.trace) and bool(self.faults) and bool(self.checks) and all(check.holds for check in self.checks)

    def expect(self, claim: str, found: object, wanted: object) -> None:
        self.checks.append(Check(claim, found, found == wanted))

    def holds(self, claim: str, found: object, holds: bool) -> None:  # noqa: FBT001 - reads as a sentence
        self.checks.append(Check(claim, found, holds))

    def took_effect(self, fault: str, times: int = 1) -> None:
        self.faults[fault] += times


class CannotPlay(Exception):
    """Raised by a drill that this machine has no stage for: it says what is missing."""
