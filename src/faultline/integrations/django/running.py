"""Run one attempt of a Django task: its context, its signals, and connections that are neither stale nor left open.

`task_started` is sent when an attempt begins, `task_finished` when the job is about to end: before its completion is
written, so that a worker that dies in between sends it again. A failed attempt that another one follows has not finished.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone

from faultline.app.blocking_job import BlockingJob  # noqa: TC001 - read by `app.task`
from faultline.app.job import Job  # noqa: TC001 - likewise
from faultline.attempt.outcomes import Outcome
from faultline.attempt.storable_text import text_of
from faultline.core.errors import FaultlineError, ResultRejected
from faultline.core.model import Failure
from faultline.integrations.django.compat import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from faultline.integrations.django.results import error_of, moment, result_of
from faultline.store.reads import views

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.store.statement import Statement

#: The result with which the running attempt has completed its job in a transaction, alone in a tuple. None: it has not.
completed: ContextVar[tuple[Any] | None] = ContextVar("completed", default=None)
#: Whose entries of the journal belong to attempts. A job that has had more is shown with the last ones.
_ENTRIES_MAX = 1000


# ruff: noqa: SLF001 - what a job reads for itself, an outage does not count against it
def runner(task: Any) -> Callable[..., Any]:
    """What a worker calls for a job of this Django task: async ones on the event loop, others in a thread."""

    def run(job: BlockingJob, args: list[Any], kwargs: dict[str, Any], **_: Any) -> Any:
        reset_queries()  # with DEBUG, Django keeps those of a connection until its next request
        close_old_connections()
        try:
            attempt = _Attempt(task, job, [job._run(one) for one in reads(job.id, job.attempt)])
            with attempt:
                return attempt.ends_with(task.func(*attempt.before(args), **kwargs))
        finally:
            close_old_connections()

    async def run_async(job: Job, args: list[Any], kwargs: dict[str, Any], **_: Any) -> Any:
        # A thread of its own for what is not async below Django's: otherwise all jobs would share one.
        async with ThreadSensitiveContext():
            try:
                attempt = _Attempt(task, job, [await job._run(one) for one in reads(job.id, job.attempt)])
                with attempt:
                    return attempt.ends_with(await task.func(*attempt.before(args), **kwargs))
            finally:
                await sync_to_async(connections.close_all)()

    return run_async if inspect.iscoroutinefunction(task.func) else run


def reads(job_id: object, attempt: int | None = None) -> list[Statement[Any]]:
    """What the result of a task is made from. A first attempt has no journal that would be needed."""
    journal = [views.journal(job_id, entries_max=_ENTRIES_MAX)] if attempt != 1 else []
    return [views.job(job_id), *journal]


def described(error: BaseException) -> str:
    """An error as it is stored, with the path of its class."""
    kind = type(error)
    path = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return text_of(error, path)


class _Attempt:
    """One attempt, from its start to its end. As a context, it sends the signal for what its task raised."""

    def __init__(self, task: Any, job: Job | BlockingJob, found: list[Any]) -> None:
        record, journal = found[0], found[1] if len(found) > 1 else []
        self._task = task
        self._is_last = job.attempt >= job.max_attempts
        self._result = result_of(record, journal, task)
        self._sender = type(self._result.task.get_backend())

    def before(self, args: list[Any]) -> list[Any]:
        return [TaskContext(task_result=self._result), *args] if self._task.takes_context else args

    def __enter__(self) -> None:
        # A receiver that raises must not fail the job; Django logs it.
        task_started.send_robust(sender=self._sender, task_result=self._result)

    def ends_with(self, returned: Any) -> Any:
        if completed.get() is not None:
            self._finish_completed()
            return None
        if isinstance(returned, Outcome):
            raise returned
        try:
            value = normalize_json(returned)
        except (TypeError, ValueError) as error:
            # Final: the task has done its work, and would do it again.
            raise ResultRejected(f"{type(error).__name__}: {error}") from error
        object.__setattr__(self._result, "_return_value", value)
        self._finish(TaskResultStatus.SUCCESSFUL)
        return value

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and completed.get() is not None and not self._result.is_finished:
            self._finish_completed()
        if error is None or self._result.is_finished or not self._is_final(error):
            return
        cause = error.__cause__ if isinstance(error, ResultRejected) else None
        self._result.errors.append(error_of(described(cause or error)))
        # Inside an exception handler: Django's receiver logs the exception that is being handled.
        self._finish(TaskResultStatus.FAILED)

    def _is_final(self, error: BaseException) -> bool:
        if isinstance(error, Outcome):
            decided = error.decided(lambda: 0.0)
            return isinstance(decided, Failure) and (decided.then != "retry" or self._is_last)
        if isinstance(error, ResultRejected):
            return True
        # What the engine raises says that the lease is lost or the database failed: the job goes on elsewhere.
        return self._is_last and not isinstance(error, FaultlineError | asyncio.CancelledError)

    def _finish_completed(self) -> None:
        """What it returns or raises after that changes nothing."""
        object.__setattr__(self._result, "_return_value", (completed.get() or (None,))[0])
        self._finish(TaskResultStatus.SUCCESSFUL)

    def _finish(self, status: Any) -> None:
        object.__setattr__(self._result, "finished_at", moment(timezone.now()))
        object.__setattr__(self._result, "status", status)
        task_finished.send_robust(sender=self._sender, task_result=self._result)
