"""The result of `crash_everywhere`: one line for each crash, and whether the task survives all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline.core.model import JobState

REMEDIES = """\
The effect and the completion of the job must not be parted by a crash. What usually helps:
  - write inside job.transaction() and finish there with tx.complete(...): both are committed, or neither is;
  - several parts: a job.step inside each part's job.transaction() is remembered together with what that part wrote;
  - a system outside this database: hand it job.idempotency_key, the same in every attempt, so that it knows a repetition."""


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash, and what was found after a healthy worker had run the job to its end."""

    #: The fault point; `point@2` for its second visit.
    point: str
    #: The process died there. If it never reached the point, nothing is shown.
    crashed: bool
    #: How the job ended; a job that has not ended did not recover.
    state: JobState
    #: The effects, to compare with those of a run without a crash.
    effects: object
    ok: bool

    def line(self, expected: object) -> str:
        if self.ok:
            return f"ok      {self.point}"
        if not self.crashed:
            return f"BROKEN  {self.point}: not reached this time; the task must take the same way in every run"
        return f"BROKEN  {self.point}: effects {self.effects!r} instead of {expected!r}, job {self.state}"


@dataclass(frozen=True, slots=True)
class Report:
    """`assert report.ok, report`, or `report.raise_if_broken()`."""

    task: str
    #: The effects of a run without a crash.
    expected: object
    crashes: tuple[Crash, ...]
    #: Visits at which it was not crashed, because the point was reached too often.
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(crash.ok for crash in self.crashes)

    @property
    def broken(self) -> list[Crash]:
        return [crash for crash in self.crashes if not crash.ok]

    def raise_if_broken(self) -> None:
        """Raise `AssertionError` with all crashes and what usually helps."""
        if not self.ok:
            raise AssertionError(f"{self}\n{REMEDIES}")

    def __str__(self) -> str:
        summary = f"{self.task} was crashed at {len(self.crashes)} points"
        verdict = f"and broke at {len(self.broken)}" if self.broken else "and survived"
        lines = [f"{summary} {verdict}; without a crash: effects {self.expected!r}, job succeeded"]
        lines += [f"  {crash.line(self.expected)}" for crash in self.crashes]
        lines += [f"  left out, as reached too often: {', '.join(self.left_out)}"] if self.left_out else []
        return "\n".join(lines)
