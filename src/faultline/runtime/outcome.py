"""What a task may return instead of a result. Outcomes are values: nothing is raised to say "later" or "never"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline.runtime.options import Duration


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed; try again after so long, or after the task's own backoff."""

    after: Duration | None = None
    error: str = "the task asked to be tried again"


@dataclass(frozen=True, slots=True)
class Snooze:
    """Nothing failed, it is only too early. The attempt is given back."""

    duration: Duration


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give this job up for good; that is no failure."""

    reason: str = "the task cancelled itself"
