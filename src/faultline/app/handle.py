"""A handle for a job: read its state, wait for its result. One poller serves all waiting handles."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from faultline import values
from faultline.attempt.options import seconds
from faultline.attempt.streams import StreamReader
from faultline.attempt.unawaited import must_await
from faultline.core.checks import check_seconds
from faultline.core.errors import JobCancelled, JobFailed, JobNotFound, ResultTimeout, UnreadableJson
from faultline.core.model import JobRecord, JobState
from faultline.flow.usage_errors import warn_in_event_loop
from faultline.store.reads import views

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from faultline.attempt.options import Duration
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.reads.views import FinalState, Standing

R = TypeVar("R")


class Looks(Protocol):
    """What a handle needs of its application."""

    @property
    def poller(self) -> Poller: ...

    @property
    def database(self) -> Database: ...

    @property
    def async_database(self) -> AsyncDatabase: ...

    def job(self, job_id: UUID | str) -> JobRecord: ...

    async def ajob(self, job_id: UUID | str) -> JobRecord: ...

    def signal(
        self, job_id: UUID, name: str, payload: Any, *, key: str | None, for_call: str | int | None, by: str | None
    ) -> bool: ...

    async def asignal(
        self, job_id: UUID, name: str, payload: Any, *, key: str | None, for_call: str | int | None, by: str | None
    ) -> bool: ...

    def cancel(self, job_id: UUID, reason: str | None, *, undo: bool, by: str | None) -> JobState: ...

    async def acancel(self, job_id: UUID, reason: str | None, *, undo: bool, by: str | None) -> JobState: ...

    def retry(self, job_id: UUID, *, reason: str | None, by: str | None) -> JobState: ...

    async def aretry(self, job_id: UUID, *, reason: str | None, by: str | None) -> JobState: ...

    def undo(self, job_id: UUID, *, reason: str | None, by: str | None) -> JobState: ...

    async def aundo(self, job_id: UUID, *, reason: str | None, by: str | None) -> JobState: ...

    def fork(
        self,
        job_id: UUID,
        *,
        before: str | int | None,
        args: Mapping[str, Any] | None,
        by: str | None,
        reason: str | None,
    ) -> JobHandle[Any]: ...

    async def afork(
        self,
        job_id: UUID,
        *,
        before: str | int | None,
        args: Mapping[str, Any] | None,
        by: str | None,
        reason: str | None,
    ) -> JobHandle[Any]: ...


class JobHandle(Generic[R]):
    """A handle for a job: reads its state, waits for its result."""

    __slots__ = ("_app", "_returns", "created", "id")

    def __init__(self, app: Looks, job_id: UUID, *, created: bool = False) -> None:
        self._app = app
        self._returns: Any = Any
        #: The id of the job.
        self.id = job_id
        #: False if an earlier enqueue with the same key or id had created it.
        self.created = created

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def reading(self, returns: Any) -> Self:
        """Read the result as this annotation says."""
        self._returns = returns
        return self

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job to end and return its result. Raises `JobFailed`, `JobCancelled` or `ResultTimeout`.

        :param timeout: How long to wait. Default: forever.
        """
        check_seconds("timeout", timeout, -math.inf, math.inf)
        warn_in_event_loop("result", "the job has ended")
        with self._app.poller.watching(self.id) as ending:
            try:
                return self._read(ending.result(seconds(timeout)))
            except TimeoutError as error:
                raise self._too_late(timeout, self._app.poller.last_seen(self.id)) from error

    @must_await
    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - the twin of result()
        """`result` for async programs."""
        check_seconds("timeout", timeout, -math.inf, math.inf)
        with self._app.poller.watching(self.id) as ending:
            try:
                return self._read(await asyncio.wait_for(asyncio.wrap_future(ending), seconds(timeout)))
            except TimeoutError as error:
                raise self._too_late(timeout, self._app.poller.last_seen(self.id)) from error

    def stream(self, name: str) -> StreamReader:
        """What the job writes to a stream, as it writes it: `for text in handle.stream("tokens")`, or `async for`.

        Begins with the first item, whenever it is called, and ends when the job has ended. If a new attempt writes some
        items again, a `Restarted` among them says how many of those read stay.

        :param name: Of the stream.
        """
        return StreamReader(self._app, self.id, name)

    def job(self) -> JobRecord:
        """The current state of the job."""
        return self._app.job(self.id)

    @must_await
    async def ajob(self) -> JobRecord:
        return await self._app.ajob(self.id)

    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        for_call: str | int | None = None,
        by: str | None = None,
    ) -> bool:
        """Send a signal to the job: if it waits for it, it goes on; if not yet, it keeps it. Returns whether it is new.

        :param name: The name for which the task calls `job.receive`.
        :param payload: What it carries: JSON, or a dataclass of it.
        :param key: The same key counts once per job, however often it is sent.
        :param for_call: The number of the wait that it answers. No other receives it; when that is over, it is refused.
        :param by: Who sends it. The journal then records it, with the login.
        """
        return self._app.signal(self.id, name, payload, key=key, for_call=for_call, by=by)

    @must_await
    async def asignal(
        self,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        for_call: str | int | None = None,
        by: str | None = None,
    ) -> bool:
        """`signal` for async programs."""
        return await self._app.asignal(self.id, name, payload, key=key, for_call=for_call, by=by)

    def cancel(self, reason: str | None = None, *, undo: bool = False, by: str | None = None) -> JobState:
        """Cancel the job, queued or running, with its children. Raises `IllegalTransition` if it has succeeded or failed.

        :param reason: Recorded in the journal, and shown as the error of the job.
        :param undo: Undo its open sagas first, and those of its children.
        :param by: Who cancels it, for the journal, which records the database login in any case. Default: the login.
        """
        return self._app.cancel(self.id, reason, undo=undo, by=by)

    @must_await
    async def acancel(self, reason: str | None = None, *, undo: bool = False, by: str | None = None) -> JobState:
        """`cancel` for async programs."""
        return await self._app.acancel(self.id, reason, undo=undo, by=by)

    def retry(self, *, reason: str | None = None, by: str | None = None) -> JobState:
        """Retry the job if it has failed or was cancelled. Raises `IllegalTransition` where that cannot help.

        Of a flow, it runs again what stopped it, and keeps the rest.

        :param reason: Recorded in the journal.
        :param by: Who retries it, as for `cancel`.
        """
        return self._app.retry(self.id, reason=reason, by=by)

    @must_await
    async def aretry(self, *, reason: str | None = None, by: str | None = None) -> JobState:
        """`retry` for async programs."""
        return await self._app.aretry(self.id, reason=reason, by=by)

    def undo(self, *, reason: str | None = None, by: str | None = None) -> JobState:
        """Undo the open sagas of the job, which has failed or was cancelled. It ends again as it had ended.

        :param reason: Recorded in the journal.
        :param by: Who does it, for the journal, which records the database login in any case. Default: the login.
        """
        return self._app.undo(self.id, reason=reason, by=by)

    @must_await
    async def aundo(self, *, reason: str | None = None, by: str | None = None) -> JobState:
        return await self._app.aundo(self.id, reason=reason, by=by)

    def fork(
        self,
        *,
        before: str | int | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> JobHandle[R]:
        """Begin a new job with the history of this one: calls before the one given are not run again, all others are.

        :param before: The number of a call, as `faultline flow` shows it. Default: all calls that have ended are kept.
        :param args: The arguments of the new job. Default: those of this one.
        :param by: Who forks it, for the journal, which records the database login in any case. Default: the login.
        :param reason: Recorded in the journal of both jobs.
        """
        return self._app.fork(self.id, before=before, args=args, by=by, reason=reason).reading(self._returns)

    @must_await
    async def afork(
        self,
        *,
        before: str | int | None = None,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> JobHandle[R]:
        """`fork` for async programs."""
        forked = await self._app.afork(self.id, before=before, args=args, by=by, reason=reason)
        return forked.reading(self._returns)

    def _read(self, ending: FinalState) -> R:
        if ending.state is JobState.SUCCEEDED:
            try:
                result: R = values.typed(ending.result, self._returns)
            except values.Misfit as error:
                if not values.is_read(self._returns):
                    # A task that completes its job in a transaction returns None, whatever the result is.
                    return ending.result  # type: ignore[no-any-return]
                # The job ran other code than this program has.
                raise UnreadableJson(
                    f"job {self.id} succeeded, and its result does not fit {values.name_of(self._returns)}: {error}."
                    " What is stored: handle.job().result"
                ) from error
            return result
        if ending.state is JobState.CANCELLED:
            # `cancel` writes "cancelled: …", Cancel(…) writes only the reason.
            why = ending.error or "cancelled"
            raise JobCancelled(f"job {self.id} was {why if why.startswith('cancelled') else f'cancelled: {why}'}")
        raise JobFailed(f"job {self.id} failed: {ending.error or 'no error was recorded'}")

    def _too_late(self, timeout: Duration | None, seen: Standing | None) -> ResultTimeout:
        state = "the database has not yet said in which state it is" if seen is None else _described(seen)
        return ResultTimeout(
            f"job {self.id} has not ended within {seconds(timeout):g} s: {state}. The job was not stopped: call result()"
            f" again later. To see why: faultline job {self.id}"
        )


def _described(seen: Standing) -> str:
    """In which state it was at the last look, and when it runs next."""
    attempt = f"attempt {seen.attempt} of {seen.max_attempts}"
    if seen.state is JobState.RUNNING:
        return f"it is running, {attempt}, on {seen.owner}"
    failed = f"; {attempt} ended with: {seen.error}" if seen.error else ""
    if seen.suspended:
        return f"it waits for what it has called or for a signal{failed}"
    return f"it is {seen.state}{f', due at {seen.due_at.isoformat()}' if seen.due_at else ''}{failed}"


class Poller:
    """Polls the database for all awaited jobs with one query per round.

    Its thread lives while a caller waits. It polls often at first, and less often while nothing happens.
    """

    def __init__(self, database: Database, *, seconds_min: float = 0.01, seconds_max: float = 0.5) -> None:
        self._database = database
        self._seconds_min = seconds_min
        self._seconds_max = seconds_max
        self._changed = threading.Condition()
        self._awaited: dict[UUID, list[Future[FinalState]]] = {}
        #: The awaited jobs, as the last look found them.
        self._seen: dict[UUID, Standing] = {}
        self._running = False

    @contextlib.contextmanager
    def watching(self, job_id: UUID):  # type: ignore[no-untyped-def]  # noqa: ANN201 - an iterator of Future[FinalState]
        ending: Future[FinalState] = Future()
        with self._changed:
            self._awaited.setdefault(job_id, []).append(ending)
            if not self._running:
                self._running = True
                threading.Thread(target=self._poll, name="faultline-results", daemon=True).start()
            self._changed.notify()
        try:
            yield ending
        finally:
            with self._changed:
                waiting = self._awaited.get(job_id, [])
                if ending in waiting:
                    waiting.remove(ending)
                if not waiting:
                    self._awaited.pop(job_id, None)
                    self._seen.pop(job_id, None)
                self._changed.notify()

    def last_seen(self, job_id: UUID) -> Standing | None:
        """As the last look found it: nothing is read, so a database that does not answer costs no further time."""
        return self._seen.get(job_id)

    def tick(self) -> bool:
        """Ask once. True if a job has ended."""
        with self._changed:
            asked = list(self._awaited)
        if not asked:
            return False
        try:
            ended, known = self._database.run(views.final_states(asked))
        except Exception as error:  # noqa: BLE001 - the waiting callers must get it
            self._deliver(asked, error)
            return True
        with self._changed:
            self._seen.update((job_id, one) for job_id, one in known.items() if job_id in self._awaited)
        for ending in ended:
            self._deliver([ending.job_id], ending)
        for job_id in set(asked) - known.keys():
            self._deliver(
                [job_id], JobNotFound(f"no job {job_id}: it was never committed in this database, or it was pruned")
            )
        return bool(ended)

    def _poll(self) -> None:
        pause = self._seconds_min
        while True:
            with self._changed:
                if not self._awaited:
                    self._running = False
                    return
            pause = self._seconds_min if self.tick() else min(pause * 1.5, self._seconds_max)
            with self._changed:
                if self._awaited and self._changed.wait(pause):
                    pause = self._seconds_min

    def _deliver(self, job_ids: list[UUID], outcome: FinalState | Exception) -> None:
        with self._changed:
            waiting = [future for job_id in job_ids for future in self._awaited.pop(job_id, [])]
        for future in waiting:
            if future.set_running_or_notify_cancel():
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
