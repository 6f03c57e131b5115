"""The result of `crash_everywhere`: one line for each crash, and whether the task survives all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline.core.model import JobState

REMEDIES = """\
The effect and the record of it must not be parted by a crash. What usually helps:
  - a flow: job.atomic("pay", function) runs the function in the job's transaction and remembers it there: what it wrote
    and that it ran are committed together, or neither is. A step of job.do, and an undo, may run again after a crash;
  - a task without steps: write inside job.transaction() and finish there with tx.complete(...);
  - job.step: inside each part's job.transaction() it is remembered together with what that part wrote;
  - a system outside this database: hand it job.idempotency_key, the same in every attempt, so that it knows a repetition."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended, and what it did."""

    #: A job that is queued did not end.
    state: JobState
    #: The class of the error that it failed with, such as `Undone`; None: it did not fail.
    error: str | None
    result: object
    effects: object
    is_flow: bool

    @property
    def shown(self) -> str:
        return f"job {self.state}" if self.error is None else f"job {self.state} with {self.error}"


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash, and what was found after healthy workers had run the job to its end."""

    #: The fault point: `point@2` for its second visit, `life 2: point` in the second life.
    point: str
    #: The process died there. If it never reached the point, nothing is shown.
    crashed: bool
    #: How the job ended; a job that has not ended did not recover.
    state: JobState
    #: The effects, to compare with those of a run without a crash.
    effects: object
    ok: bool
    #: What is another one than without a crash, in words; empty: nothing.
    difference: str = ""

    def line(self) -> str:
        if not self.crashed:
            return f"NOT COVERED  {self.point}: not reached this time; the task must take the same way in every run"
        return f"ok      {self.point}" if self.ok else f"BROKEN  {self.point}: {self.difference}"


@dataclass(frozen=True, slots=True)
class Report:
    """`assert report.ok, report`, or `report.raise_if_broken()`."""

    task: str
    #: The effects of a run without a crash.
    expected: object
    crashes: tuple[Crash, ...]
    #: Visits at which it was not crashed, because the point was reached too often.
    left_out: tuple[str, ...] = ()
    #: How many processes in a row a run without a crash takes: one more for each wait, and for each queue of its children.
    lives: int = 1
    #: How that run ended.
    ended: str = "job succeeded"
    #: Whether results were compared. They are not if two runs without a crash have different ones.
    compares_results: bool = True

    @property
    def ok(self) -> bool:
        return all(crash.ok for crash in self.crashes)

    @property
    def broken(self) -> list[Crash]:
        """Where the job did something else than without a crash."""
        return [crash for crash in self.crashes if crash.crashed and not crash.ok]

    @property
    def not_covered(self) -> list[Crash]:
        """Points that the run to be crashed did not reach. Of these nothing is known."""
        return [crash for crash in self.crashes if not crash.crashed]

    def raise_if_broken(self) -> None:
        """Raise `AssertionError` with all crashes and what usually helps, if one broke or a point was not covered."""
        if not self.ok:
            raise AssertionError(f"{self}\n{REMEDIES}" if self.broken else str(self))

    def __str__(self) -> str:
        covered = len(self.crashes) - len(self.not_covered)
        summary = f"{self.task} was crashed at {_counted(covered, 'point')} in {_counted(self.lives, 'life', 'lives')}"
        verdict = f"and broke at {len(self.broken)}" if self.broken else "and survived"
        missed = f"; {_counted(len(self.not_covered), 'point')} not covered" if self.not_covered else ""
        lines = [f"{summary} {verdict}{missed}; without a crash: effects {self.expected!r}, {self.ended}"]
        lines += [f"  {crash.line()}" for crash in self.crashes]
        lines += [f"  left out, as reached too often: {', '.join(self.left_out)}"] if self.left_out else []
        lines += [] if self.compares_results else ["  results were not compared: without a crash, each run has another one"]
        return "\n".join(lines)


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"
