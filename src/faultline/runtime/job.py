"""The job as its task sees it. A task that wants it takes `job: Job` as its first parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease


@dataclass(frozen=True, slots=True)
class Job:
    """Facts about the running attempt, among them what an outside system needs to recognise a repeated or stale call."""

    id: UUID
    task: str
    attempt: int
    max_attempts: int
    #: Grows with every claim of this job. An outside system that remembers the greatest one seen can refuse older ones.
    fencing_token: int
    #: The same in every attempt: the key given at the submission, or the job's id.
    idempotency_key: str

    @classmethod
    def of(cls, lease: Lease) -> Job:
        return cls(
            id=lease.job_id,
            task=lease.task,
            attempt=lease.attempt,
            max_attempts=lease.max_attempts,
            fencing_token=lease.fencing_token,
            idempotency_key=lease.idempotency_key,
        )
