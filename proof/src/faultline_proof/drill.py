"""What every drill gives: its trace, the faults that took effect, what it asserted, and a verdict.

A drill whose fault never bit has shown nothing, and has failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline_proof.stage import Stage


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


@dataclass(frozen=True, slots=True)
class Drill:
    """A named failure story."""

    name: str
    story: str
    play: Callable[[Stage], None]


class CannotPlay(Exception):
    """Raised by a drill that this machine has no stage for: it says what is missing."""


def run(drill: Drill, server_dsn: str, *, mutant: str = "") -> Verdict:
    """Play one drill on a stage of its own. An error in the middle is a failed check, with its text."""
    from faultline_proof.stage import Stage  # noqa: PLC0415

    with Stage(drill.name, server_dsn, mutant=mutant) as stage:
        try:
            drill.play(stage)
        except CannotPlay as missing:
            stage.verdict.skipped = str(missing)
        except Exception as error:  # noqa: BLE001 - whatever it was, the trace tells the rest
            stage.verdict.holds("the story was played to its end", f"{type(error).__name__}: {error}", holds=False)
    return stage.verdict
