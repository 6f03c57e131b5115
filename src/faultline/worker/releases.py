"""Release jobs that could not run through no fault of their own, with a delay and without using up an attempt.

There are two reasons. The worker does not know the task, as during a deployment. Or the database failed one of the job's own
calls, as in a failover. Neither is the job's fault, so neither may end it. Both are logged, with growing delays. But a job
that is interrupted every time ends its own session, or cannot work here: from some number on that counts as a failure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from faultline.app.texts import text_of
from faultline.core import events
from faultline.core.backoff import doubled, jittered
from faultline.core.model import Failure
from faultline.worker.endings import Failed, Released

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline.worker.hold import Hold

T = TypeVar("T")

#: The delay grows by the first each time that this worker releases the job, up to the second.
_UNKNOWN_SECONDS_STEP, _UNKNOWN_SECONDS_MAX = 0.5, 60.0
#: The worker releases about so many jobs of one unknown task per second.
_UNKNOWN_PER_SECOND = 100.0
_LOG_SECONDS = 60.0
_INTERRUPTED_SECONDS_MIN, _INTERRUPTED_SECONDS_MAX = 1.0, 60.0
#: In a row. With their delays that takes ten minutes, longer than a failover and most outages.
_INTERRUPTIONS_MAX = 15
#: If a job was claimed more often than this between two interruptions, an attempt went well meanwhile.
_CLAIMS_BETWEEN_MAX = 1000
_REMEMBERED_MAX = 10_000
#: For jobs that may not run beside the running ones: delays, and when a job that was not seen is forgotten.
_PUT_OFF_SECONDS_MIN, _PUT_OFF_SECONDS_MAX, _PUT_OFF_FORGOTTEN_SECONDS = 1.0, 10.0, 30.0


@dataclass(slots=True)
class _Unknown:
    """A task that this worker does not know."""

    log_at: float
    #: Jobs since it was last logged.
    jobs: int = 0


@dataclass(slots=True)
class _Interrupted:
    token: int
    #: Interruptions in a row.
    times: int


class Releases:
    """What one worker remembers of the jobs that it released."""

    def __init__(self, chance: random.Random, monotonic: Callable[[], float]) -> None:
        self._chance = chance
        self._monotonic = monotonic
        self._unknown: dict[str, _Unknown] = {}
        #: How often each job of an unknown task was released.
        self._released: OrderedDict[UUID, int] = OrderedDict()
        self._interrupted: OrderedDict[UUID, _Interrupted] = OrderedDict()

    def unknown_task(self, hold: Hold, known: Iterable[str]) -> Released:
        """The delay grows each time. So a worker that knows the task soon gets the job; if there is none, the job is
        claimed in vain only once a minute. The more such jobs there are, the longer the delay.
        """
        lease, now = hold.lease, self._monotonic()
        met = self._unknown.setdefault(lease.task, _Unknown(log_at=now))
        met.jobs += 1
        times = self._released.get(lease.job_id, 0) + 1
        _remember(self._released, lease.job_id, times)
        delay = max(_UNKNOWN_SECONDS_STEP * times, met.jobs / _UNKNOWN_PER_SECOND)
        if now >= met.log_at:
            events.emit(
                "task_unknown",
                task=lease.task,
                job_id=lease.job_id,
                jobs=met.jobs,
                known=", ".join(sorted(name for name in known if not name.startswith("faultline.")))[:1000],
                action="released; deploy a worker that has this task",
            )
            met.log_at, met.jobs = now + _LOG_SECONDS, 0
        return Released(hold, jittered(min(delay, _UNKNOWN_SECONDS_MAX), self._chance))

    def interrupted(self, hold: Hold, error: BaseException) -> Released | Failed:
        """The delay doubles with each interruption. Beyond the limit, each uses up an attempt."""
        lease, times = hold.lease, self._times(hold.lease)
        delay = jittered(doubled(_INTERRUPTED_SECONDS_MIN, times, _INTERRUPTED_SECONDS_MAX), self._chance)
        hold.counts.interrupted()
        if times > _INTERRUPTIONS_MAX:
            why = f"interrupted from outside {times} times in a row; further interruptions count as failures"
            if lease.attempt >= lease.max_attempts:
                self.went_well(lease)  # an operator who retries it knows why it failed
            return Failed(hold, Failure(f"{why}: {text_of(error)}", delay_seconds=delay))
        events.emit(
            "attempt_interrupted",
            job_id=lease.job_id,
            task=lease.task,
            attempt=lease.attempt,
            times=times,
            again_in=round(delay, 3),
            error=text_of(error),
        )
        # Its last call may have completed it and lost the answer.
        return Released(hold, delay, may_have_ended=True)

    def went_well(self, lease: Lease) -> None:
        """The attempt ended by itself, perhaps with a failure: the next interruption is the first again."""
        self._interrupted.pop(lease.job_id, None)

    def _times(self, lease: Lease) -> int:
        """How often this worker saw it interrupted in a row. A job that another worker released may have snoozed there."""
        met = self._interrupted.get(lease.job_id)
        times = 1 if met is None or lease.fencing_token - met.token > _CLAIMS_BETWEEN_MAX else met.times + 1
        _remember(self._interrupted, lease.job_id, _Interrupted(lease.fencing_token, times))
        return times


class PuttingOff:
    """How often this worker released a job because it may not run beside the running ones."""

    def __init__(self) -> None:
        self._put_off: OrderedDict[UUID, tuple[int, float]] = OrderedDict()

    def seconds(self, job_id: UUID, now: float) -> float | None:
        """No delay at first: another worker may be idle. Then twice as long each time, or this job would be claimed again
        and again instead of others that can run.
        """
        times, at = self._put_off.get(job_id, (0, now))
        times = times + 1 if now - at < _PUT_OFF_FORGOTTEN_SECONDS else 1
        _remember(self._put_off, job_id, (times, now))
        return None if times == 1 else doubled(_PUT_OFF_SECONDS_MIN, times - 1, _PUT_OFF_SECONDS_MAX)


def _remember(memory: OrderedDict[UUID, T], job_id: UUID, what: T) -> None:
    """Keep only the most recent jobs."""
    memory[job_id] = what
    memory.move_to_end(job_id)
    if len(memory) > _REMEMBERED_MAX:
        memory.popitem(last=False)
