"""Cancel jobs, retry failed and cancelled ones, and fork any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core import events
from faultline.operate import who
from faultline.operate.logged import logged
from faultline.store import verbs
from faultline.store.reads import failures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from faultline.core.model import JobState, Json
    from faultline.store.statement import Statement

_BATCH_JOBS = 1000


def cancel(
    job_id: UUID, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[JobState]:
    """Cancel a job. With `only_queues`, jobs of other queues are not found."""
    who.check(by, reason)
    statement = verbs.cancel(job_id, reason, only_queues=only_queues, by=by)
    return logged(statement, "job_cancelled_by_request", job_id=job_id, by=by, reason=reason)


def retry(
    job_id: UUID, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[JobState]:
    """Retry a failed or cancelled job. With `only_queues`, jobs of other queues are not found."""
    who.check(by, reason)
    statement = verbs.retry(job_id, only_queues=only_queues, by=by, reason=reason)
    return logged(statement, "job_retried_by_request", job_id=job_id, by=by, reason=reason)


def fork(
    job_id: UUID,
    before: str | None = None,
    args: Mapping[str, Json] | None = None,
    *,
    new_id: UUID | None = None,
    reason: str | None = None,
    by: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[UUID]:
    """Begin a new job with the history of this one, up to the call with the number `before`. Returns its id.

    With `only_queues`, jobs of other queues are not found.
    """
    who.check(by, reason)
    statement = verbs.fork(job_id, before, args, new_id=new_id, by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "job_forked_by_request", job_id=job_id, before=before, by=by, reason=reason)


class RetryFailed:
    """Retry failed jobs in batches, newest first, each in its own transaction.

    A job that fails again meanwhile is newer than the first batch, so it is not retried twice. Run one after the other:
    `while (batch := work.batch()) is not None: work.took(database.run(batch))`.
    """

    def __init__(
        self, which: failures.FailedFilter, *, reason: str | None = None, by: str | None = None, jobs_max: int | None = None
    ) -> None:
        who.check(by, reason)
        self._which = which
        self._by = by
        self._reason = reason
        self._jobs_max = jobs_max
        #: Limited, because batches that find nothing take time too.
        self._batches_left = None if jobs_max is None else 2 * jobs_max // _BATCH_JOBS + 2
        self._begun = False
        #: How many were retried.
        self.jobs = 0
        #: Where to continue; None: at the end.
        self.behind: failures.Cursor | None = None

    def batch(self) -> Statement[failures.Retried] | None:
        """The next batch to run; None: all are done."""
        left = _BATCH_JOBS if self._jobs_max is None else min(_BATCH_JOBS, self._jobs_max - self.jobs)
        if (self._begun and self.behind is None) or left <= 0 or self._batches_left == 0:
            events.emit("jobs_retried_by_request", jobs=self.jobs, by=self._by, reason=self._reason)
            return None
        self._begun = True
        if self._batches_left is not None:
            self._batches_left -= 1
        which = self._which if self.behind is None else self._which.behind(self.behind)
        return failures.retry(which, max_jobs=left, by=self._by, reason=self._reason)

    def took(self, done: failures.Retried) -> None:
        self.jobs += done.jobs
        self.behind = done.behind
