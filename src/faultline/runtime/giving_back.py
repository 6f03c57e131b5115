"""Give back jobs that could not be run through no fault of their own: with a delay, and without using up an attempt.

Two things can be wrong with this worker or its database. The worker does not know the task, as during a deployment. Or the
database failed one of the job's own calls, as in a failover. Neither says anything about the job, so neither may end it.
Each is logged, and comes back less and less often while it lasts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.runtime.completer import Released
from faultline.runtime.texts import text_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from faultline.runtime.hold import Hold

#: Longer by so much with every claim of the job, and no longer than so.
_UNKNOWN_SECONDS_STEP, _UNKNOWN_SECONDS_MAX = 0.5, 60.0
#: Of one task, this worker gives back about so many a second and no more.
_UNKNOWN_PER_SECOND = 100.0
_LOG_SECONDS = 60.0
_INTERRUPTED_SECONDS_MIN, _INTERRUPTED_SECONDS_MAX = 1.0, 60.0
_REMEMBERED_MAX = 10_000
_CHAIN_MAX = 50


@dataclass(slots=True)
class _Unknown:
    """A task that this worker does not know, and has met."""

    log_at: float
    #: Since it was logged last.
    jobs: int = 0


class GivingBack:
    """What one worker remembers of the jobs that it had to give back."""

    def __init__(self, chance: random.Random, monotonic: Callable[[], float]) -> None:
        self._chance = chance
        self._monotonic = monotonic
        self._unknown: dict[str, _Unknown] = {}
        self._interruptions: OrderedDict[UUID, int] = OrderedDict()

    def unknown_task(self, hold: Hold, known: Iterable[str]) -> Released:
        """The delay grows with every claim of this job, by whomever. So it soon meets a worker that knows the task, if there
        is one, and is claimed in vain once a minute if there is none. Where many such jobs wait, each comes back later.
        """
        lease, now = hold.lease, self._monotonic()
        met = self._unknown.setdefault(lease.task, _Unknown(log_at=now))
        met.jobs += 1
        delay = max(_UNKNOWN_SECONDS_STEP * lease.fencing_token, met.jobs / _UNKNOWN_PER_SECOND)
        if now >= met.log_at:
            events.emit(
                "task_unknown",
                task=lease.task,
                job_id=lease.job_id,
                jobs=met.jobs,
                known=", ".join(sorted(known))[:1000],
                action="given back; deploy a worker that has this task",
            )
            met.log_at, met.jobs = now + _LOG_SECONDS, 0
        return Released(hold, self._jittered(min(delay, _UNKNOWN_SECONDS_MAX)))

    def interrupted(self, hold: Hold, error: BaseException) -> Released:
        """The delay doubles with each interruption of the job that this worker has seen."""
        lease = hold.lease
        times = self._interruptions.pop(lease.job_id, 0)
        self._interruptions[lease.job_id] = times + 1
        if len(self._interruptions) > _REMEMBERED_MAX:
            self._interruptions.popitem(last=False)
        delay = self._jittered(min(_INTERRUPTED_SECONDS_MIN * 2.0 ** min(times, 10), _INTERRUPTED_SECONDS_MAX))
        hold.counts.interrupted()
        events.emit(
            "attempt_interrupted",
            job_id=lease.job_id,
            task=lease.task,
            attempt=lease.attempt,
            times=times + 1,
            again_in=round(delay, 3),
            error=text_of(error),
        )
        # Its last call may have completed it, and only the answer was lost.
        return Released(hold, delay, may_have_ended=True)

    def _jittered(self, delay: float) -> float:
        return delay * self._chance.uniform(0.75, 1.25)


def is_caused_by(error: BaseException, causes: Sequence[BaseException]) -> bool:
    """Whether it is one of these, or was raised because of one; for a group, whether all of it was."""
    found: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if found is None:
            return False
        if any(found is cause for cause in causes):
            return True
        if isinstance(found, BaseExceptionGroup):
            return all(is_caused_by(part, causes) for part in found.exceptions)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return False
