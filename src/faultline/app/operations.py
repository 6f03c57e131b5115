"""What a program does to jobs and queues: cancel, retry, fork, signal, pause, resume. Who did it, and why, is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline import operate
from faultline.app.handle import JobHandle
from faultline.attempt.options import id_of
from faultline.attempt.unawaited import must_await
from faultline.core.errors import JobRejected
from faultline.core.model import JobState
from faultline.flow.usage_errors import check_named
from faultline.store.reads import cancellable, listing
from faultline.values import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from faultline.app.handle import Poller
    from faultline.core.ids import Ids
    from faultline.core.model import JobRecord, JobSummary
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.statement import Statement


class Operations:
    """The part of an application that operates on jobs and queues."""

    if TYPE_CHECKING:
        _ids: Ids

        @property
        def poller(self) -> Poller: ...
        def job(self, job_id: UUID | str) -> JobRecord: ...
        async def ajob(self, job_id: UUID | str) -> JobRecord: ...
        @property
        def database(self) -> Database: ...
        @property
        def async_database(self) -> AsyncDatabase: ...

    def jobs(
        self,
        *,
        state: JobState | str | None = None,
        queue: str | None = None,
        task: str | None = None,
        group: str | None = None,
        idempotency_key: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
    ) -> list[JobSummary]:
        """List jobs: newest first; failed and cancelled ones by their end; queued ones of a queue in the order they run in.

        :param state: Which state: `queued`, `running`, `succeeded`, `failed`, `cancelled`.
        :param queue: Of which queue.
        :param task: Of which task.
        :param group: Of which group.
        :param idempotency_key: With which key they were enqueued.
        :param created_after: Enqueued then or later.
        :param created_before: Enqueued before.
        :param limit: How many at most, up to 1000. It looks through 10,000 jobs at the most.
        """
        wanted = _wanted(state, queue, task, created_after, created_before, idempotency_key, group)
        return self.database.run(listing.jobs(wanted, page_jobs=_checked_limit(limit))).jobs

    @must_await
    async def ajobs(
        self,
        *,
        state: JobState | str | None = None,
        queue: str | None = None,
        task: str | None = None,
        group: str | None = None,
        idempotency_key: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
    ) -> list[JobSummary]:
        """`jobs` for async programs."""
        wanted = _wanted(state, queue, task, created_after, created_before, idempotency_key, group)
        return (await self.async_database.run(listing.jobs(wanted, page_jobs=_checked_limit(limit)))).jobs

    def cancel(
        self, job_id: UUID | str, reason: str | None = None, *, undo: bool = False, by: str | None = None
    ) -> JobState:
        """Cancel a queued or running job. Raises `IllegalTransition` if it has succeeded or failed.

        :param job_id: Which job.
        :param reason: Recorded in the journal, and shown as the error of the job.
        :param undo: Undo its open sagas, and those of its children. Then the job is queued again at once for that, and
            `cancelled` when they are undone.
        :param by: Who cancels it, for the journal, which records the database login in any case. Default: the login.
        """
        return self.database.run(operate.cancel(id_of(job_id), reason=reason, undo=undo, by=by))

    @must_await
    async def acancel(
        self, job_id: UUID | str, reason: str | None = None, *, undo: bool = False, by: str | None = None
    ) -> JobState:
        return await self.async_database.run(operate.cancel(id_of(job_id), reason=reason, undo=undo, by=by))

    def cancel_jobs(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        group: str | None = None,
        state: JobState | str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Cancel all queued and running jobs that match. Returns how many.

        In batches of up to 1,000, each in its own transaction. Jobs that are enqueued meanwhile stay, and so do those that
        another transaction has locked at that moment: one that is being claimed, or that completes itself.

        :param queue: Of which queue. One of these four at least.
        :param task: Of which task.
        :param group: Of which group.
        :param state: Only `queued`, or only `running`.
        :param reason: As for `cancel`, of each job.
        :param by: As for `cancel`.
        """
        work = operate.CancelJobs(_unended(state, queue, task, group), reason=reason, by=by)
        while (batch := work.batch()) is not None:
            work.took(self.database.run(batch))
        return work.jobs

    @must_await
    async def acancel_jobs(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        group: str | None = None,
        state: JobState | str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """`cancel_jobs` for async programs."""
        work = operate.CancelJobs(_unended(state, queue, task, group), reason=reason, by=by)
        while (batch := work.batch()) is not None:
            work.took(await self.async_database.run(batch))
        return work.jobs

    def retry(self, job_id: UUID | str, *, reason: str | None = None, by: str | None = None) -> JobState:
        """Retry a failed or cancelled job, with all its attempts again. Raises `IllegalTransition` for any other job.

        :param job_id: Which job.
        :param reason: Recorded in the journal.
        :param by: Who retries it, as for `cancel`.
        """
        return self.database.run(operate.retry(id_of(job_id), reason=reason, by=by))

    @must_await
    async def aretry(self, job_id: UUID | str, *, reason: str | None = None, by: str | None = None) -> JobState:
        return await self.async_database.run(operate.retry(id_of(job_id), reason=reason, by=by))

    def undo(self, job_id: UUID | str, *, reason: str | None = None, by: str | None = None) -> JobState:
        """Undo the open sagas of a failed or cancelled job. It is queued for that, and ends again as it had ended.

        Raises `IllegalTransition` if it has not ended, or has nothing to undo.

        :param job_id: Which job.
        :param reason: Recorded in the journal.
        :param by: Who does it, as for `cancel`.
        """
        return self.database.run(operate.undo(id_of(job_id), reason=reason, by=by))

    @must_await
    async def aundo(self, job_id: UUID | str, *, reason: str | None = None, by: str | None = None) -> JobState:
        return await self.async_database.run(operate.undo(id_of(job_id), reason=reason, by=by))

    def fork(
        self,
        job_id: UUID | str,
        *,
        before: str | int | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> JobHandle[Any]:
        """Begin a new job with the history of this one: calls before the one given are not run again, all others are.

        The job itself may be open or have ended, and is not changed. Of a failed job this is a retry from any place.
        Raises `JobNotFound` for an unknown job or call, `IllegalTransition` if it cannot be gone on with from there.

        :param job_id: Which job.
        :param before: The number of a call, as `faultline flow` shows it. Default: all calls that have ended are kept.
        :param args: The arguments of the new job. With others, calls that were kept must still be called the same way.
            Default: those of the job.
        :param by: Who forks it, as for `cancel`.
        :param reason: Recorded in the journal of both jobs.
        """
        self.database.facts_and_time()
        return JobHandle(self, self.database.run(self._fork(job_id, before, args, by, reason)), created=True)

    @must_await
    async def afork(
        self,
        job_id: UUID | str,
        *,
        before: str | int | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> JobHandle[Any]:
        """`fork` for async programs."""
        await self.async_database.facts_and_time()
        doing = self._fork(job_id, before, args, by, reason)
        return JobHandle(self, await self.async_database.run(doing), created=True)

    def _fork(
        self,
        job_id: UUID | str,
        before: str | int | None,
        args: Mapping[str, Any] | None,
        by: str | None,
        reason: str | None,
    ) -> Statement[UUID]:
        number = None if before is None else str(before)
        if args is not None:
            check_named("a fork", args)
        given = None if args is None else {name: plain(one) for name, one in args.items()}
        return operate.fork(id_of(job_id), number, given, new_id=self._ids.new(), by=by, reason=reason)

    def signal(
        self,
        job_id: UUID | str | None,
        name: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        for_call: str | int | None = None,
        by: str | None = None,
    ) -> bool:
        """Send a signal to a job: one that waits for it goes on, one that does not yet keeps it. Returns whether it is new.

        Raises `IllegalTransition` if the job has ended or no longer waits at `for_call`, `LimitReached` if it keeps as many
        signals as it may.

        :param job_id: Which job; None with an `idempotency_key`.
        :param name: The name for which the task calls `job.receive`.
        :param payload: What it carries: JSON, or a dataclass of it.
        :param idempotency_key: The key with which the job was enqueued, instead of its id.
        :param key: The same key counts once per job, however often it is sent.
        :param for_call: The number of the wait that it answers. No other receives it.
        :param by: Who sends it. The journal then records it, with the login.
        """
        doing = self._signalling(job_id, name, payload, idempotency_key, key, for_call, by)
        return self.database.run(doing)

    @must_await
    async def asignal(
        self,
        job_id: UUID | str | None,
        name: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        for_call: str | int | None = None,
        by: str | None = None,
    ) -> bool:
        """`signal` for async programs."""
        doing = self._signalling(job_id, name, payload, idempotency_key, key, for_call, by)
        return await self.async_database.run(doing)

    def _signalling(
        self,
        job_id: UUID | str | None,
        name: str,
        payload: Any,
        idempotency_key: str | None,
        key: str | None,
        for_call: str | int | None,
        by: str | None,
    ) -> Statement[bool]:
        """What sends a signal."""
        job = None if job_id is None else id_of(job_id)
        return operate.signal(job, name, plain(payload), key=key, for_call=for_call, by=by, idempotency_key=idempotency_key)

    def pause(self, name: str, *, reason: str | None = None, by: str | None = None) -> datetime:
        """Pause a queue: workers stop claiming from it until `resume`. Returns since when.

        :param name: Which queue.
        :param reason: Recorded in the journal, and shown with the queue.
        :param by: Who pauses it, as for `cancel`.
        """
        return self.database.run(operate.pause(name, reason=reason, by=by))

    @must_await
    async def apause(self, name: str, *, reason: str | None = None, by: str | None = None) -> datetime:
        return await self.async_database.run(operate.pause(name, reason=reason, by=by))

    def resume(self, name: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Resume a queue: workers claim from it again. Returns whether it was paused.

        :param name: Which queue.
        :param reason: Recorded in the journal.
        :param by: Who resumes it, as for `cancel`.
        """
        return self.database.run(operate.resume(name, reason=reason, by=by))

    @must_await
    async def aresume(self, name: str, *, reason: str | None = None, by: str | None = None) -> bool:
        return await self.async_database.run(operate.resume(name, reason=reason, by=by))


_LIST_MAX = 1000


def _wanted(state: JobState | str | None, *others: Any) -> listing.Wanted:
    return listing.Wanted(_state(state), *others)


def _unended(
    state: JobState | str | None, queue: str | None, task: str | None, group: str | None
) -> cancellable.UnendedFilter:
    return cancellable.UnendedFilter(queue, task, group, _state(state))


def _state(state: JobState | str | None) -> JobState | None:
    try:
        return None if state is None else JobState(state)
    except ValueError:
        raise JobRejected(f"{state!r} is not a state of a job; the states are {', '.join(JobState)}") from None


def _checked_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= _LIST_MAX:
        raise JobRejected(f"limit must be a whole number from 1 to {_LIST_MAX}, not {limit!r}")
    return limit
