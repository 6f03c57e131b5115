"""Bodies of what is done to all jobs that match: cancel them, or retry failed ones. Both can be counted first."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from faultline.web.api import cursors
from faultline.web.api.shapes import Asked, GroupKey, QueueName, Reason, TaskName, Text, Whole

JOBS_MAX = 10_000
FailedCursor = Annotated[str, StringConstraints(pattern=cursors.FAILED_PATTERN)]
UnendedCursor = Annotated[str, StringConstraints(pattern=cursors.UNENDED_PATTERN)]


class _Together(Asked):
    queue: QueueName | None = None
    task: TaskName | None = None
    preview: bool = Field(False, description="Only count the jobs.")
    reason: Reason | None = Field(None, description="Recorded in the journal of each job.")
    max_jobs: Whole = Field(JOBS_MAX, ge=1, le=JOBS_MAX)


class CancelJobs(_Together):
    """Which queued and running jobs to cancel: by one of `queue`, `task`, `group` and `state` at least."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": [name], "properties": {name: {"type": "string"}}}
                for name in ("queue", "task", "group", "state")
            ]
        }
    )

    group: GroupKey | None = None
    state: Literal["queued", "running"] | None = None
    cursor: UnendedCursor | None = Field(
        None,
        description="`next_cursor` of the previous answer. With that of a preview, jobs enqueued since are not cancelled.",
    )


class RetryFailed(_Together):
    """Which failed jobs to retry."""

    error_prefix: Text | None = None
    error_kind: Text | None = Field(None, description="The `error_kind` of a group of failures.")
    cursor: FailedCursor | None = Field(
        None,
        description="`next_cursor` of the previous answer. With that of a preview, jobs that failed since are not retried.",
    )


class ChangedJobs(BaseModel):
    preview: bool
    jobs: int = Field(description="How many jobs were changed, or would be.")
    at_least: bool = Field(description="There may be more: only the newest were searched.")
    refused: int = Field(
        default=0, description="How many match and were not retried, since that cannot help. `retry` of one says why."
    )
    next_cursor: str | None = Field(description="Where to continue; null when there are no more.")
