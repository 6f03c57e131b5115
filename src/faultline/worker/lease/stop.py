"""Whether this worker is to stop: its program or a signal asks for it, or too many attempts are stuck."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from faultline.core import events
from faultline.worker.base.force_exit import end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from faultline.worker.base.background_tasks import BackgroundTasks
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.lease_table import Leases


class Stop:
    """Shared by the worker and the executor, which must distinguish a cancellation by the worker from any other."""

    #: This process runs only the worker, so the worker may end it.
    owns_process = False
    #: The worker asked to be replaced: a supervisor should start a fresh process.
    wants_replacement = False
    #: The worker cancels what still runs. Any other cancellation is a task's own.
    cancels_jobs = False

    def __init__(
        self, worker_id: str, leases: Leases, monotonic: Callable[[], float], *, abandoned_threads_max: int
    ) -> None:
        self._worker_id = worker_id
        self._leases = leases
        self._monotonic = monotonic
        self._abandoned_threads_max = abandoned_threads_max
        self._services: BackgroundTasks | None = None
        self._said = False
        self.asked = asyncio.Event()

    def ask(self) -> None:
        self.say()
        self.asked.set()
        self.notify_companion()

    def replace(self, reason: str, *, is_planned: bool = False) -> None:
        """Stop, and ask for a fresh process."""
        if not self.asked.is_set():
            self.wants_replacement = True
            self.say(reason, is_planned=is_planned)
            self.ask()

    def notify_companion(self) -> None:
        if self.asked.is_set() and self._leases.shared is not None:
            self._leases.shared.stop_asked(self._monotonic())

    def say(self, reason: str | None = None, *, is_planned: bool = False) -> None:
        """Log it once, with the first reason: the stop itself may take the whole grace time."""
        if not self._said:
            self._said = True
            level = events.INFO if reason is None or is_planned else events.WARNING
            events.emit("worker_stopping", level=level, worker=self._worker_id, reason=reason or "asked to stop")

    def is_stuck(self, hold: HeldLease, stuck: int, *, is_async: bool) -> None:
        """An abandoned attempt goes on; `stuck`: how many do. Each keeps memory and whatever it holds, and cannot be ended.
        With too many, the process should be replaced.
        """
        lease = hold.lease
        if is_async:
            events.emit("attempt_left_behind", job_id=lease.job_id, task=lease.task, stuck=stuck)
        else:
            events.emit("thread_abandoned", job_id=lease.job_id, task=lease.task, stuck=stuck)
        limit = self._abandoned_threads_max
        if stuck > limit and not self.asked.is_set():
            events.emit(
                "threads_exhausted", worker=self._worker_id, stuck=stuck, limit=limit, action=self._ask_replacement()
            )

    def is_helpless(self, jobs: int) -> None:
        """It cannot write how jobs ended, for a fault of its own: what it runs would be run again, for nothing."""
        if not self.asked.is_set():
            events.emit("completions_exhausted", worker=self._worker_id, jobs=jobs, action=self._ask_replacement())

    def _ask_replacement(self) -> str:
        if not self.owns_process:
            return "none: restart this program"
        self.wants_replacement = True
        self.ask()
        return "exiting for a restart"

    # When a task cancels everything in the event loop

    def watch(self, services: BackgroundTasks) -> None:
        services.start(self._canary)
        self._services = services

    async def _canary(self) -> None:
        """Is cancelled only by code that cancels everything."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.end_swept_away()
            raise

    def has_cancelled(self, error: BaseException) -> bool:
        """Whether the worker, or the end of the whole program, cancelled the current attempt and so caused `error`."""
        if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            return False
        # A task that ends the program would do so again and again if that used up no attempt.
        return self.cancels_jobs or (self._program_ends() and not isinstance(error, SystemExit | KeyboardInterrupt))

    def _program_ends(self) -> bool:
        if self._services is None:
            return False
        canary = self._services.task(self._canary)
        swept_away = canary.done() or canary.cancelling() > 0
        if swept_away:
            self.end_swept_away()
        return swept_away

    def end_swept_away(self) -> None:
        """In the worker's own process only a task can have cancelled the worker: end as after a crash."""
        if self.owns_process and not self._said:
            _crash_swept_away(self._worker_id)


def log_stopped(holds: Iterable[HeldLease], now: float) -> None:
    """The grace time is over: these attempts are cancelled and their jobs released."""
    for hold in holds:
        lease, ran = hold.lease, 0.0 if hold.began_at is None else now - hold.began_at
        events.emit("attempt_stopped", job_id=lease.job_id, task=lease.task, attempt=lease.attempt, seconds=round(ran, 1))


def log_left(worker_id: str, holds: Sequence[HeldLease]) -> None:
    """The endings or releases of these jobs could not be written. Their leases expire."""
    events.emit("worker_gave_up", worker=worker_id, jobs=len(holds), reason="the database did not answer")
    for hold in holds:
        lease = hold.lease
        attempt, attempts_max = lease.attempt, lease.max_attempts
        events.emit("ending_not_written", job_id=lease.job_id, task=lease.task, attempt=attempt, max_attempts=attempts_max)


def _crash_swept_away(worker_id: str) -> NoReturn:
    """Release nothing: a job that ends its workers and keeps its attempts would run forever. It is reaped like any job that
    kills its worker, and so it is found (see `CrashQuarantine`).
    """
    events.emit(
        "worker_swept_away",
        worker=worker_id,
        reason="a task cancelled the worker's own asyncio tasks",
        action="ending as after a crash; a task may cancel only tasks that it started, not asyncio.all_tasks()",
    )
    end(1)
