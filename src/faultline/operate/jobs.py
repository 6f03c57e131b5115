"""Cancel jobs, retry and undo failed and cancelled ones, and fork any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from faultline.core import events
from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store import verbs
from faultline.store.reads import cancellable, failures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from faultline.core.model import JobState, Json
    from faultline.store.statement import Statement

_BATCH_JOBS = 1000
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
W = TypeVar("W", bound="Filter[Any]")


def cancel(
    job_id: UUID,
    *,
    reason: str | None = None,
    undo: bool = False,
    by: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[JobState]:
    """Cancel a job, and with `undo` its sagas. With `only_queues`, jobs of other queues are not found."""
    actor.check(by, reason)
    statement = verbs.cancel(job_id, reason, undo=undo, only_queues=only_queues, by=by)
    return logged(statement, "job_cancelled_by_request", job_id=job_id, by=by, reason=reason)


def retry(
    job_id: UUID, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[JobState]:
    """Retry a failed or cancelled job. With `only_queues`, jobs of other queues are not found."""
    actor.check(by, reason)
    statement = verbs.retry(job_id, only_queues=only_queues, by=by, reason=reason)
    return logged(statement, "job_retried_by_request", job_id=job_id, by=by, reason=reason)


def undo(
    job_id: UUID, *, reason: str | None = None, by: str | None = None, only_queues: Sequence[str] | None = None
) -> Statement[JobState]:
    """Undo the sagas of a failed or cancelled job. With `only_queues`, jobs of other queues are not found."""
    actor.check(by, reason)
    statement = verbs.undo(job_id, only_queues=only_queues, by=by, reason=reason)
    return logged(statement, "job_undone_by_request", job_id=job_id, by=by, reason=reason)


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
    actor.check(by, reason)
    statement = verbs.fork(job_id, before, args, new_id=new_id, by=by, reason=reason, only_queues=only_queues)
    return logged(statement, "job_forked_by_request", job_id=job_id, before=before, by=by, reason=reason)


class Done(Protocol[C_co]):
    """What a batch has done: how many jobs, and where to go on."""

    @property
    def jobs(self) -> int: ...
    @property
    def behind(self) -> C_co | None: ...


class Filter(Protocol[C_contra]):
    def behind(self, cursor: C_contra, /) -> Self: ...


class _InBatches(Generic[W, C]):
    """Change the jobs that match, in batches, each in its own transaction.

    Newest first: what comes in meanwhile is not reached. Run one batch after the other:
    `while (batch := work.batch()) is not None: work.took(database.run(batch))`.
    """

    def __init__(self, which: W, *, reason: str | None = None, by: str | None = None, jobs_max: int | None = None) -> None:
        actor.check(by, reason)
        self._which = which
        self._by = by
        self._reason = reason
        self._jobs_max = jobs_max
        #: Limited, because batches that find nothing take time too.
        self._batches_left = None if jobs_max is None else 2 * jobs_max // _BATCH_JOBS + 2
        self._begun = False
        #: How many were changed.
        self.jobs = 0
        #: Where to continue; None: at the end.
        self.behind: C | None = None

    def batch(self) -> Statement[Done[C]] | None:
        """The next batch to run; None: all are done."""
        left = _BATCH_JOBS if self._jobs_max is None else min(_BATCH_JOBS, self._jobs_max - self.jobs)
        if (self._begun and self.behind is None) or left <= 0 or self._batches_left == 0:
            self._log()
            return None
        self._begun = True
        if self._batches_left is not None:
            self._batches_left -= 1
        return self._next(self._which if self.behind is None else self._which.behind(self.behind), left)

    def took(self, done: Done[C]) -> None:
        self.jobs += done.jobs
        self.behind = done.behind

    def _next(self, which: W, max_jobs: int) -> Statement[Any]:
        raise NotImplementedError

    def _log(self) -> None:
        """At the end."""
        raise NotImplementedError


class RetryFailed(_InBatches["failures.FailedFilter", "failures.Cursor"]):
    """Retry failed jobs. One that fails again meanwhile is newer than the first batch, so it is not retried twice."""

    #: How many match and were not retried, since that cannot help. `retry` of one says why.
    refused = 0

    def took(self, done: Done[failures.Cursor]) -> None:
        super().took(done)
        self.refused += cast("failures.Retried", done).refused

    def _next(self, which: failures.FailedFilter, max_jobs: int) -> Statement[failures.Retried]:
        return failures.retry(which, max_jobs=max_jobs, by=self._by, reason=self._reason)

    def _log(self) -> None:
        events.emit("jobs_retried_by_request", jobs=self.jobs, refused=self.refused, by=self._by, reason=self._reason)


class CancelJobs(_InBatches["cancellable.UnendedFilter", "UUID"]):
    """Cancel queued and running jobs."""

    def _next(self, which: cancellable.UnendedFilter, max_jobs: int) -> Statement[cancellable.Cancelled]:
        return cancellable.cancel(which, max_jobs=max_jobs, by=self._by, reason=self._reason)

    def _log(self) -> None:
        events.emit("jobs_cancelled_by_request", jobs=self.jobs, by=self._by, reason=self._reason)
