"""Call the program's observers, one after another, in the order of what happened. They run beside the jobs.

Nothing that an observer does changes a job: what it raises is logged, and one that hangs is left behind. A worker that dies
calls nobody: an observer is called at most once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.app.hooks import hook_name
from faultline.core import events
from faultline.core.errors import JobFailed
from faultline.core.model import Lease
from faultline.core.running import running
from faultline.store.reads import views
from faultline.worker.base.threads import Threads
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.write.endings import Completed, Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.app.hooks import HookTable
    from faultline.core.model import Reaped
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally
    from faultline.worker.lease.held_lease import Runs
    from faultline.worker.write.endings import Ending

#: How long one call may take.
CALL_SECONDS = 10.0
#: More than this waits only if observers are slower than the jobs. The rest is dropped: jobs do not wait for observers.
WAITING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Note:
    what: str
    #: None: another worker ran it, and this one reaped it.
    hold: HeldLease | None
    error: BaseException | None = None
    reaped: Reaped | None = None


class Observers:
    def __init__(self, hooks: HookTable, database: AsyncDatabase, tally: Tally, executor: Runs) -> None:
        self._wanted = {what: found for what, found in hooks.observers.items() if found}
        self._database = database
        self._tally = tally
        self._executor = executor
        self._threads = Threads()
        self._notes: deque[_Note] = deque()
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._dropped = 0
        #: Calls that took too long and still run. Each observer has at most one.
        self._stuck: dict[Callable[..., Any], asyncio.Future[Any]] = {}

    def started(self, hold: HeldLease) -> None:
        self._note("start", hold)

    def completed(self, hold: HeldLease) -> None:
        """The job completed itself, in its own transaction."""
        self._note("success", hold)

    def ended(self, endings: Sequence[Ending]) -> None:
        """These are written. One that was released, or cancelled by its task, has not failed."""
        for ending in endings:
            hold = ending.hold
            if isinstance(ending, Completed):
                self._note("success", hold)
            elif isinstance(ending, Failed) and ending.failure.then != "cancel":
                error = hold.raised or JobFailed(ending.failure.error)
                self._note("failure" if ending.is_final else "retry", hold, error)
            hold.raised = None

    def reaped(self, reaped: Reaped) -> None:
        """A job failed because its last worker died."""
        error = JobFailed(reaped.last_error or f"the lease was lost ({reaped.reason})")
        if "failure" in self._wanted:
            self._put(_Note("failure", None, error, reaped))

    def _note(self, what: str, hold: HeldLease, error: BaseException | None = None) -> None:
        if what in self._wanted:
            self._put(_Note(what, hold, error))

    def _put(self, note: _Note) -> None:
        if len(self._notes) >= WAITING_MAX:
            self._dropped += 1
            return
        self._notes.append(note)
        self._idle.clear()
        self._came.set()

    async def run(self) -> None:
        """Ends only when cancelled."""
        while True:
            if not self._notes:
                self._idle.set()
                self._came.clear()
                await self._came.wait()
            note = self._notes.popleft()
            if self._dropped:
                events.emit("hooks_dropped", calls=self._dropped, waiting=len(self._notes))
                self._dropped = 0
            hold = note.hold if note.reaped is None else await self._found(note.reaped)
            if hold is not None:
                await self._call_all(note, hold)

    async def flushed(self) -> None:
        """Wait until all have been called."""
        await self._idle.wait()

    def close(self) -> None:
        self._threads.close()

    async def _call_all(self, note: _Note, hold: HeldLease) -> None:
        job = hold.seen()
        for fn in self._wanted[note.what]:
            given = (job,) if note.error is None else (job, note.error)
            token = running.set(hold)
            try:
                error = await self._call(fn, given)
            finally:
                running.reset(token)
            if error is not None:
                lease = hold.lease
                events.emit("hook_failed", hook=hook_name(fn), job_id=lease.job_id, task=lease.task, error=error[:500])

    async def _call(self, fn: Callable[..., Any], given: tuple[Any, ...]) -> str | None:
        """Returns what went wrong."""
        earlier = self._stuck.get(fn)
        if earlier is not None:
            if not earlier.done():
                return "not called: an earlier call has not returned"
            del self._stuck[fn]
        call: asyncio.Future[Any]
        if inspect.iscoroutinefunction(fn):
            call = asyncio.ensure_future(_caught(fn, given))
        else:
            call = self._threads.run(lambda: _caught_blocking(fn, given))
        done, _ = await asyncio.wait([call], timeout=CALL_SECONDS)
        if done:
            return "it was cancelled" if call.cancelled() else call.result()
        self._stuck[fn] = call
        if isinstance(call, asyncio.Task):
            call.cancel()
        return f"timed out after {CALL_SECONDS:g} s"

    async def _found(self, reaped: Reaped) -> HeldLease | None:
        """The job as its last worker had it. None: it was pruned, or the database does not answer."""
        try:
            record = await self._database.run(views.job(reaped.job_id))
        except Exception as error:  # noqa: BLE001 - an observer is not worth the worker
            text = f"not called, because the job could not be read: {error}"[:500]
            events.emit("hook_failed", hook="on_failure", job_id=reaped.job_id, task=reaped.task, error=text)
            return None
        if record is None:
            return None
        lease = Lease(
            job_id=reaped.job_id,
            fencing_token=reaped.fencing_token,
            task=reaped.task,
            args=record.args,
            attempt=reaped.attempt,
            max_attempts=reaped.max_attempts,
            needs_start_record=False,
            reaps=record.reaps or 0,
            priority=record.priority,
            next_run_at=record.created_at,
            lease_seconds=0.0,
            key=record.idempotency_key,
            in_flow=record.flow_id is not None,
            group=record.group,
            owner=reaped.owner,
        )
        hold = HeldLease(lease, 0.0, self._tally.of(reaped.queue))
        hold.lost, hold.by = reaped.reason, self._executor
        return hold


async def _caught(fn: Callable[..., Any], given: tuple[Any, ...]) -> str | None:
    try:
        await fn(*given)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit would stop the event loop
        return _said(error)
    return None


def _caught_blocking(fn: Callable[..., Any], given: tuple[Any, ...]) -> str | None:
    try:
        found = fn(*given)
    except BaseException as error:  # noqa: BLE001 - likewise
        return _said(error)
    if inspect.iscoroutine(found):
        found.close()
        return "it returned a coroutine that nothing awaits; make it `async def`"
    return None


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - an error whose own text raises
        return type(error).__name__
