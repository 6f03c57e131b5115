"""What a program does to jobs and queues: cancel, retry, pause, resume. Who did it, and why, is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline import operate
from faultline.app.options import id_of

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from faultline.core.model import JobState
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database


class Operations:
    """The part of an application that operates on jobs and queues."""

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...
        @property
        def async_database(self) -> AsyncDatabase: ...

    def cancel(self, job_id: UUID | str, reason: str | None = None, *, by: str | None = None) -> JobState:
        """Cancel a queued or running job. Raises `IllegalTransition` if it has already ended.

        :param job_id: Which job.
        :param reason: Recorded in the journal, and shown as the error of the job.
        :param by: Who cancels it, for the journal, which records the database login in any case. Default: the login.
        """
        return self.database.run(operate.cancel(id_of(job_id), reason=reason, by=by))

    async def acancel(self, job_id: UUID | str, reason: str | None = None, *, by: str | None = None) -> JobState:
        return await self.async_database.run(operate.cancel(id_of(job_id), reason=reason, by=by))

    def retry(self, job_id: UUID | str, *, reason: str | None = None, by: str | None = None) -> JobState:
        """Retry a failed or cancelled job, with all its attempts again. Raises `IllegalTransition` for any other job.

        :param job_id: Which job.
        :param reason: Recorded in the journal.
        :param by: Who retries it, as for `cancel`.
        """
        return self.database.run(operate.retry(id_of(job_id), reason=reason, by=by))

    async def aretry(self, job_id: UUID | str, *, reason: str | None = None, by: str | None = None) -> JobState:
        return await self.async_database.run(operate.retry(id_of(job_id), reason=reason, by=by))

    def pause(self, name: str, *, reason: str | None = None, by: str | None = None) -> datetime:
        """Pause a queue: workers stop claiming from it until `resume`. Returns since when.

        :param name: Which queue.
        :param reason: Recorded in the journal, and shown with the queue.
        :param by: Who pauses it, as for `cancel`.
        """
        return self.database.run(operate.pause(name, reason=reason, by=by))

    async def apause(self, name: str, *, reason: str | None = None, by: str | None = None) -> datetime:
        return await self.async_database.run(operate.pause(name, reason=reason, by=by))

    def resume(self, name: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Resume a queue: workers claim from it again. Returns whether it was paused.

        :param name: Which queue.
        :param reason: Recorded in the journal.
        :param by: Who resumes it, as for `cancel`.
        """
        return self.database.run(operate.resume(name, reason=reason, by=by))

    async def aresume(self, name: str, *, reason: str | None = None, by: str | None = None) -> bool:
        return await self.async_database.run(operate.resume(name, reason=reason, by=by))
