"""Release jobs that could not run through no fault of their own, with a delay and without using up an attempt.

There are two reasons. The worker's code does not fit the job, as during a deployment: it does not know the task, or the task
has other parameters. Or the database failed one of the job's own calls, as in a failover. Neither is the job's fault. Both
are logged, with growing delays. But neither goes on for ever: code that has not come within a day fails the job, and a job
that is interrupted every time ends its own session, or cannot work here: from some number on that counts as a failure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from faultline.attempt.storable_text import storable, text_of
from faultline.core import events
from faultline.core.model import Failure
from faultline.core.pause import doubled, jittered
from faultline.worker.write.endings import Failed, Released

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline.worker.lease.held_lease import HeldLease

T = TypeVar("T")

#: For jobs that the code does not fit: the delay grows by the first each time that this worker releases it, to the second.
_UNFIT_SECONDS_STEP, _UNFIT_SECONDS_MAX = 0.5, 60.0
#: The worker releases about so many of these jobs per second and task.
_UNFIT_PER_SECOND = 100.0
#: A job that this worker has released for so long fails: the code that fits it will not come by itself.
UNFIT_SECONDS_MAX = 24 * 3600.0
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
class _Unfit:
    """A task that this worker does not know, or that has other parameters here."""

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
        self._unfit: dict[str, _Unfit] = {}
        #: How often each job was released that the code does not fit, and when first.
        self._released: OrderedDict[UUID, tuple[int, float]] = OrderedDict()
        self._interrupted: OrderedDict[UUID, _Interrupted] = OrderedDict()

    def unknown_task(self, hold: HeldLease, known: Iterable[str]) -> Released | Failed:
        task, job_id = hold.lease.task, hold.lease.job_id
        jobs = self._to_log(task)
        if jobs:
            events.emit(
                "task_unknown",
                task=task,
                job_id=job_id,
                jobs=jobs,
                known=", ".join(sorted(name for name in known if not name.startswith("faultline.")))[:1000],
                action="released; deploy a worker that has this task",
            )
        return self._unfitting(hold, f"no worker that claimed it has a task {task}")

    def unfitting_arguments(self, hold: HeldLease, why: str) -> Released | Failed:
        """Its arguments have other names than the parameters that its task has here."""
        task, job_id = hold.lease.task, hold.lease.job_id
        jobs = self._to_log(task)
        if jobs:
            action = "released; deploy a worker whose task takes these arguments"
            events.emit("arguments_unfit", task=task, job_id=job_id, jobs=jobs, error=why, action=action)
        return self._unfitting(hold, why)

    def _to_log(self, task: str) -> int:
        """Count a job; how many jobs of the task to log now, or 0: not yet."""
        now = self._monotonic()
        met = self._unfit.setdefault(task, _Unfit(log_at=now))
        met.jobs += 1
        if now < met.log_at:
            return 0
        jobs, met.log_at, met.jobs = met.jobs, now + _LOG_SECONDS, 0
        return jobs

    def _unfitting(self, hold: HeldLease, why: str) -> Released | Failed:
        """The delay grows each time. So a worker whose code fits soon gets the job; if there is none, the job is claimed in
        vain only once a minute. The more such jobs there are, the longer the delay.
        """
        lease, now = hold.lease, self._monotonic()
        times, since = self._released.get(lease.job_id, (0, now))
        if now - since >= UNFIT_SECONDS_MAX:
            self._released.pop(lease.job_id)  # an operator who retries it has another day
            todo = f"deploy it, then: faultline retry {lease.job_id}"
            return Failed(hold, Failure(storable(f"{why}. Released for a day, and no code came that fits; {todo}"), "fail"))
        _remember(self._released, lease.job_id, (times + 1, since))
        delay = max(_UNFIT_SECONDS_STEP * (times + 1), self._unfit[lease.task].jobs / _UNFIT_PER_SECOND)
        return Released(hold, jittered(min(delay, _UNFIT_SECONDS_MAX), self._chance))

    def interrupted(self, hold: HeldLease, error: BaseException) -> Released | Failed:
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
