"""Give back jobs that could not be run through no fault of their own: with a delay, and without using up an attempt.

Two things can be wrong with this worker or its database. The worker does not know the task, as during a deployment. Or the
database failed one of the job's own calls, as in a failover. Neither says anything about the job, so neither may end it.
Each is logged, and comes back less and less often while it lasts. But a job that is interrupted every time is not unlucky:
it ends its own session, or cannot work here. From some time on that counts, so that it ends and somebody sees why.
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

#: Longer by so much each time that this worker gives the job back, and no longer than so.
_UNKNOWN_SECONDS_STEP, _UNKNOWN_SECONDS_MAX = 0.5, 60.0
#: Of one task, this worker gives back about so many a second and no more.
_UNKNOWN_PER_SECOND = 100.0
_LOG_SECONDS = 60.0
_INTERRUPTED_SECONDS_MIN, _INTERRUPTED_SECONDS_MAX = 1.0, 60.0
#: In a row. With their delays that takes ten minutes, longer than a failover and than most outages of any kind.
_INTERRUPTIONS_MAX = 15
#: Where a job was claimed more often than this between two interruptions, something went well meanwhile.
_CLAIMS_BETWEEN_MAX = 1000
_REMEMBERED_MAX = 10_000
#: Of a job that may not run beside what runs here. One that was not seen for so long is as good as new.
_PUT_OFF_SECONDS_MIN, _PUT_OFF_SECONDS_MAX, _PUT_OFF_FORGOTTEN_SECONDS = 1.0, 10.0, 30.0


@dataclass(slots=True)
class _Unknown:
    """A task that this worker does not know, and has met."""

    log_at: float
    #: Since it was logged last.
    jobs: int = 0


@dataclass(slots=True)
class _Interrupted:
    """A job that was interrupted here, and last with this token."""

    token: int
    #: In a row.
    times: int


class GivingBack:
    """What one worker remembers of the jobs that it had to give back."""

    def __init__(self, chance: random.Random, monotonic: Callable[[], float]) -> None:
        self._chance = chance
        self._monotonic = monotonic
        self._unknown: dict[str, _Unknown] = {}
        #: How often each job of an unknown task was given back.
        self._given_back: OrderedDict[UUID, int] = OrderedDict()
        self._interrupted: OrderedDict[UUID, _Interrupted] = OrderedDict()

    def unknown_task(self, hold: Hold, known: Iterable[str]) -> Released:
        """The delay grows each time. So the job soon meets a worker that knows the task, if there is one, and is claimed in
        vain once a minute if there is none. Where many such jobs wait, each comes back later.
        """
        lease, now = hold.lease, self._monotonic()
        met = self._unknown.setdefault(lease.task, _Unknown(log_at=now))
        met.jobs += 1
        times = self._given_back.get(lease.job_id, 0) + 1
        _remember(self._given_back, lease.job_id, times)
        delay = max(_UNKNOWN_SECONDS_STEP * times, met.jobs / _UNKNOWN_PER_SECOND)
        if now >= met.log_at:
            events.emit(
                "task_unknown",
                task=lease.task,
                job_id=lease.job_id,
                jobs=met.jobs,
                known=", ".join(sorted(known))[:1000],
                action="released; deploy a worker that has this task",
            )
            met.log_at, met.jobs = now + _LOG_SECONDS, 0
        return Released(hold, jittered(min(delay, _UNKNOWN_SECONDS_MAX), self._chance))

    def interrupted(self, hold: Hold, error: BaseException) -> Released | Failed:
        """The delay doubles with each interruption of the job. From the limit on, each uses up an attempt."""
        lease, times = hold.lease, self._times(hold.lease)
        delay = jittered(doubled(_INTERRUPTED_SECONDS_MIN, times, _INTERRUPTED_SECONDS_MAX), self._chance)
        hold.counts.interrupted()
        if times > _INTERRUPTIONS_MAX:
            why = f"interrupted from outside {times} times in a row; further interruptions count as failures"
            if lease.attempt >= lease.max_attempts:
                self.went_well(lease)  # whoever retries it has found out why
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
        # Its last call may have completed it, and only the answer was lost.
        return Released(hold, delay, may_have_ended=True)

    def went_well(self, lease: Lease) -> None:
        """The attempt came to an end of its own, be it a failure: the next interruption is the first one again."""
        self._interrupted.pop(lease.job_id, None)

    def _times(self, lease: Lease) -> int:
        """How often this worker saw it interrupted in a row. What others saw is not known: a job that they
        gave back may as well have gone well there, and asked to be run later.
        """
        met = self._interrupted.get(lease.job_id)
        times = 1 if met is None or lease.fencing_token - met.token > _CLAIMS_BETWEEN_MAX else met.times + 1
        _remember(self._interrupted, lease.job_id, _Interrupted(lease.fencing_token, times))
        return times


class PuttingOff:
    """How often this worker gave a job back because it may not run beside what runs here."""

    def __init__(self) -> None:
        self._given_up: OrderedDict[UUID, tuple[int, float]] = OrderedDict()

    def seconds(self, job_id: UUID, now: float) -> float | None:
        """At first it is not delayed: another worker may be idle. One that comes back is, twice as long each time: else it
        would be claimed again and again, and take the place of those that may run.
        """
        times, at = self._given_up.get(job_id, (0, now))
        times = times + 1 if now - at < _PUT_OFF_FORGOTTEN_SECONDS else 1
        _remember(self._given_up, job_id, (times, now))
        return None if times == 1 else doubled(_PUT_OFF_SECONDS_MIN, times - 1, _PUT_OFF_SECONDS_MAX)


def _remember(memory: OrderedDict[UUID, T], job_id: UUID, what: T) -> None:
    """The jobs that were met last."""
    memory[job_id] = what
    memory.move_to_end(job_id)
    if len(memory) > _REMEMBERED_MAX:
        memory.popitem(last=False)
