"""Decide how an attempt ended from what its task returned or raised. There is always an ending."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faultline.attempt.backoff import Backoff
from faultline.attempt.error_attribution import is_caused_by
from faultline.attempt.outcomes import ContinueAsNew, Outcome
from faultline.attempt.storable_text import storable, text_of
from faultline.attempt.unawaited import never_awaited
from faultline.core import events, pause
from faultline.core.bounds import AGAIN_SECONDS_MAX, RESULT_BYTES_MAX, SNOOZE_SECONDS_MIN
from faultline.core.checks import seconds
from faultline.core.errors import CostTooHigh, FenceBroken, ResultRejected, StaleLease, UnreadableJson
from faultline.core.model import Failure
from faultline.history.ending import RunEnded, too_few
from faultline.values import Misfit
from faultline.worker.run.processes.answers import Returned, result_text
from faultline.worker.write.endings import Completed, Failed, Released, StartedOver, unstorable
from faultline.worker.write.release_policy import Releases

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faultline.app.tasks import Task
    from faultline.core.host import Host
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.stop import Stop
    from faultline.worker.write.endings import Ending


_SAME_ARGUMENTS = (
    "Not retried: another attempt would read the same. Enqueue it with what fits, or retry the job once the annotation does"
)


class Judge:
    def __init__(self, host: Host, stop: Stop) -> None:
        self._chance = host.chance
        self._stop = stop
        self._monotonic = host.monotonic
        self._releases = Releases(host.chance, host.monotonic)
        #: From the database's settings.
        self.result_bytes_max = RESULT_BYTES_MAX

    def unknown(self, hold: HeldLease, known: Iterable[str]) -> Released | Failed:
        """The ending of a job whose task is not known here."""
        return self._releases.unknown_task(hold, known)

    def misfit(self, hold: HeldLease, task: Task[..., Any]) -> Released | Failed | None:
        """The ending of a job that its task cannot even start with; None: it can, with the arguments read."""
        lease = hold.lease
        if lease.fault is not None:
            # Final: another attempt would read the same text.
            return Failed(
                hold,
                Failure(f"its arguments cannot be read: {lease.fault}. Enqueue it with values that Python supports", "fail"),
            )
        if tuple(lease.args) in task.plain:
            return None
        try:
            lease.args = task.accept(lease.args)
        except TypeError as error:
            why = f"the arguments do not match {lease.task}{task.signature}: {error}"
            return self._releases.unfitting_arguments(hold, why)
        except Misfit as error:
            self._releases.went_well(lease)
            why = f"the arguments do not fit {lease.task}{task.signature}: {error}. {_SAME_ARGUMENTS}"
            return Failed(hold, Failure(storable(why), then="fail"))
        except BaseException as error:  # noqa: BLE001 - a class of the program may raise anything, SystemExit included
            return self.failed(hold, task, f"the arguments of {lease.task} cannot be read: {text_of(error)}")
        return None

    def returned(self, hold: HeldLease, task: Task[..., Any], result: Any) -> Ending:
        if hold.unawaited:
            return self.failed_by(hold, task, never_awaited(hold.unawaited, ", so it did not run"))
        if isinstance(result, Outcome):
            self._releases.went_well(hold.lease)
            if isinstance(result, ContinueAsNew):
                return self._began_anew(hold, task, result)
            decided = result.decided(lambda: self._backoff(hold, task))
            return Failed(hold, decided) if isinstance(decided, Failure) else Released(hold, decided.delay_seconds)
        if isinstance(result, Returned):
            return Completed(hold, result.text)
        text = result_text(result, task.results, self.result_bytes_max)
        return Completed(hold, text) if isinstance(text, str) else Failed(hold, Failure(text.error, then="fail"))

    def _began_anew(self, hold: HeldLease, task: Task[..., Any], again: ContinueAsNew) -> Ending:
        try:
            return StartedOver(hold, task.bind(*again.positional, **again.named).args)
        except Exception as error:  # noqa: BLE001 - values that JSON cannot hold, and whatever their own methods raise
            return self.failed(hold, task, f"the arguments of ContinueAsNew(...) do not fit {task.name}: {text_of(error)}")

    def raised(self, hold: HeldLease, task: Task[..., Any], error: BaseException, *, first: bool) -> Ending | None:
        """Works even if reading the error raises another. `first`: no other job has run in this asyncio task before."""
        try:
            return self._raised(hold, task, error, first=first)
        except BaseException:  # noqa: BLE001 - SystemExit included
            why = "the task raised an exception whose text cannot be read without raising another one"
            return Failed(hold, Failure(why, delay_seconds=self._usual_backoff(hold)))

    def _raised(  # noqa: PLR0911 - one for each kind of error
        self, hold: HeldLease, task: Task[..., Any], error: BaseException, *, first: bool
    ) -> Ending | None:
        match error:
            case asyncio.CancelledError() if hold.lost is not None:
                return None
            case Outcome():
                return self.returned(hold, task, error)
            case RunEnded() if hold.program is not None:
                # The program knows what it waits for.
                return None
            case _ if waiting := too_few(error):
                # Its budget has said when to come again. That is not an attempt.
                again_at = min(one.again_at for one in waiting)
                return Released(hold, max(SNOOZE_SECONDS_MIN, again_at - self._monotonic()))
            case _ if self._stop.has_cancelled(error):
                # The worker stopped it, so the error is not the job's.
                return Released(hold)
            case asyncio.CancelledError() if first:
                return self.failed(hold, task, "the task was cancelled, but not by its worker: it cancelled itself")
            case StaleLease():
                # The new owner of the lease will finish the job.
                hold.lose("lease_lost")
                return None
            case ResultRejected():
                return unstorable(hold, str(error))
            case FenceBroken() | UnreadableJson() | CostTooHigh():
                # Final: another attempt would commit outside the fence again, read the same step, or ask for as much.
                return Failed(hold, Failure(text_of(error), then="fail"))
            case _:
                # An earlier job in this asyncio task may have cancelled it, by a timer that it left behind.
                interrupted = isinstance(error, asyncio.CancelledError) or is_caused_by(error, hold.failed_by or ())
                return self._releases.interrupted(hold, error) if interrupted else self.failed_by(hold, task, error)

    def interrupted(self, hold: HeldLease, error: BaseException) -> Released | Failed:
        """The database failed a call that was made for the job."""
        return self._releases.interrupted(hold, error)

    def failed_by(self, hold: HeldLease, task: Task[..., Any], error: BaseException) -> Failed:
        """The ending of an attempt that ended by this exception, by the rules of its task."""
        why = None if task.rules is None else task.rules.final(error)
        if why is None:
            return self.failed(hold, task, task.error_text(error))
        self._releases.went_well(hold.lease)
        return Failed(hold, Failure(f"{task.error_text(error)}\n{why}", then="fail"))

    def failed(self, hold: HeldLease, task: Task[..., Any], error: str) -> Failed:
        self._releases.went_well(hold.lease)
        return Failed(hold, Failure(error, delay_seconds=self._backoff(hold, task)))

    def _backoff(self, hold: HeldLease, task: Task[..., Any]) -> float:
        if task.backoff is not None:
            try:
                if isinstance(task.backoff, Backoff):
                    return task.backoff.spread(hold.lease.attempt, self._chance)
                return min(max(0.0, float(seconds(task.backoff(hold.lease.attempt)) or 0.0)), AGAIN_SECONDS_MAX)
            except BaseException as error:  # noqa: BLE001 - the user's function must not lose the job or end the worker
                events.emit("backoff_failed", task=task.name, error=text_of(error)[:500])
        return self._usual_backoff(hold)

    def _usual_backoff(self, hold: HeldLease) -> float:
        return pause.jittered(pause.after_attempt(hold.lease.attempt), self._chance)
