"""What crashing a task everywhere has shown: one line for each crash, and for the task as a whole whether it survives."""

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
    """One crash, and what was found after the job had been run to its end by a healthy worker."""

    #: The fault point; `point@2` where it was reached for the second time.
    point: str
    #: The process really died there. One that never came to the point has shown nothing.
    crashed: bool
    #: How the job ended; one that has not ended was not recovered.
    state: JobState
    #: What the effects were in the end, to be compared with those of a run without a crash.
    effects: object
    ok: bool

    def told(self, expected: object) -> str:
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
    #: Visits of points at which it was not crashed, since these points were reached too often.
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(crash.ok for crash in self.crashes)

    @property
    def broken(self) -> list[Crash]:
        return [crash for crash in self.crashes if not crash.ok]

    def raise_if_broken(self) -> None:
        """Fail with all that was seen, and with what usually helps."""
        if not self.ok:
            raise AssertionError(f"{self}\n{REMEDIES}")

    def __str__(self) -> str:
        told = f"{self.task} was crashed at {len(self.crashes)} points"
        verdict = f"and broke at {len(self.broken)}" if self.broken else "and survived"
        lines = [f"{told} {verdict}; without a crash: effects {self.expected!r}, job succeeded"]
        lines += [f"  {crash.told(self.expected)}" for crash in self.crashes]
        lines += [f"  left out, as reached too often: {', '.join(self.left_out)}"] if self.left_out else []
        return "\n".join(lines)
