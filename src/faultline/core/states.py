"""The states of a job. A module of its own: the command line needs them for its help, and no other noun."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job: `queued` and `running` jobs are open, the others have ended."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
