"""The trace of a drill read as epochs: who held which job under which token, from when to when, and how it ended.

A trace comes from processes that were killed on purpose: any event may be missing, and any field may hold any text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_ENDINGS = {"job_completed": "completed", "job_failed": "failed", "attempt_failed": "failed", "job_released": "released"}
_OF_AN_EPOCH = {
    "lease_acquired", "execution_started", "lease_renewed", "lease_lost", "stale_write_blocked", *_ENDINGS
}  # fmt: skip
_UNKNOWN = "unknown"


class Moment(NamedTuple):
    """Something that happened, in seconds from the start."""

    at: float
    what: str


@dataclass(slots=True)
class Epoch:
    """One worker's time with one job, under one token."""

    job_id: str
    token: str
    worker: str
    claimed: float | None = None
    started: float | None = None
    renewals: list[float] = field(default_factory=list)
    #: The lease was taken back: it had run out, or its worker was dead.
    reaped: Moment | None = None
    #: The worker noticed by itself that it had lost the lease.
    lost: Moment | None = None
    #: The worker was killed with the job in its hands.
    died: float | None = None
    refused: list[Moment] = field(default_factory=list)
    ended: Moment | None = None

    @property
    def times(self) -> list[float]:
        moments = [moment.at for moment in (self.reaped, self.lost, self.ended, *self.refused) if moment is not None]
        known = [at for at in (self.claimed, self.started, self.died) if at is not None]
        return sorted([*moments, *known, *self.renewals])

    @property
    def lease_over(self) -> float | None:
        """When others could have the job again; None if the trace does not tell."""
        over = [moment.at for moment in (self.reaped, self.ended) if moment is not None]
        return min(over, default=None)

    @property
    def activity_over(self) -> float:
        """When the worker was last busy with it: it wrote the ending, was refused, was told, or died."""
        ends = [moment.at for moment in (self.ended, self.lost, *self.refused) if moment is not None]
        if self.died is not None:
            return min([self.died, *ends])
        return max(ends) if ends else self.times[-1]


@dataclass(frozen=True, slots=True)
class Story:
    """All epochs of a drill, grouped by job in the order of the first claim, and what was done to the system meanwhile."""

    jobs: list[list[Epoch]]
    faults: list[Moment]

    def most_telling(self, most: int) -> list[list[Epoch]]:
        """The jobs to show: those that were refused a write, reaped or run again. Without any, simply the first ones."""
        telling = [job for job in self.jobs if _tells(job)]
        ranked = sorted(telling, key=lambda job: (-sum(len(epoch.refused) for epoch in job), -len(job)))
        chosen = ranked[:most] or self.jobs[:most]
        return sorted(chosen, key=_first)

    def telling(self) -> int:
        return sum(map(_tells, self.jobs))


def read(trace: Sequence[dict[str, Any]]) -> Story:
    """Make epochs of events. What has no time cannot be drawn and is passed over."""
    timed = [(at, event) for event in trace if (at := _time(event.get("at"))) is not None]
    start = min((at for at, _ in timed), default=0.0)
    epochs = _Epochs()
    faults: list[Moment] = []
    for at, event in sorted(timed, key=lambda pair: pair[0]):
        if _is_fault(event):
            faults.append(Moment(at - start, _named(event)))
        epochs.add(at - start, event)
    return Story(epochs.by_job(), faults)


class _Epochs:
    def __init__(self) -> None:
        #: By job and token, then by worker: only a broken protocol has two workers there.
        self._found: dict[tuple[str, str], dict[str, Epoch]] = {}
        self._deaths: list[tuple[float, str]] = []

    def add(self, at: float, event: dict[str, Any]) -> None:
        worker = str(event.get("worker_name", _UNKNOWN))
        match event.get("event"):
            case "lease_reaped":  # told by whoever reaped it
                key = _key(event)
                holders = self._found.get(key) or {_UNKNOWN: self._epoch(key, _UNKNOWN)}
                for epoch in holders.values():
                    epoch.reaped = Moment(at, str(event.get("reason", "")))
            case "job_failed" if "reason" in event:
                pass  # told by the reaper as well, after lease_reaped: it is no epoch of the reaper's
            case "worker_killed":
                self._deaths.append((at, worker))
            case "fault_took_effect" if event.get("action") == "kill":
                self._deaths.append((at, worker))
            case name if name in _OF_AN_EPOCH:
                _happened(self._epoch(_key(event), worker), at, event)

    def by_job(self) -> list[list[Epoch]]:
        jobs: dict[str, list[Epoch]] = {}
        epochs = [epoch for workers in self._found.values() for epoch in workers.values()]
        for epoch in sorted(epochs, key=lambda epoch: epoch.times[0]):
            jobs.setdefault(epoch.job_id, []).append(epoch)
            if epoch.ended is None:
                deaths = [at for at, worker in self._deaths if worker == epoch.worker and at >= epoch.times[0]]
                epoch.died = min(deaths, default=None)
        return sorted(jobs.values(), key=_first)

    def _epoch(self, key: tuple[str, str], worker: str) -> Epoch:
        return self._found.setdefault(key, {}).setdefault(worker, Epoch(*key, worker))


def _happened(epoch: Epoch, at: float, event: dict[str, Any]) -> None:
    reason = str(event.get("reason", ""))
    match event["event"]:
        case "lease_acquired":
            epoch.claimed = at
        case "execution_started":
            epoch.started = at
        case "lease_renewed":
            epoch.renewals.append(at)
        case "lease_lost":
            epoch.lost = Moment(at, reason)
        case "stale_write_blocked":
            epoch.refused.append(Moment(at, reason))
        case ending:
            epoch.ended = Moment(at, _ENDINGS[ending])


def _key(event: dict[str, Any]) -> tuple[str, str]:
    return str(event.get("job_id", _UNKNOWN)), str(event.get("token", event.get("stale_token", "?")))


def _tells(job: list[Epoch]) -> bool:
    return len(job) > 1 or any(epoch.refused or epoch.reaped for epoch in job)


def _first(job: list[Epoch]) -> float:
    return job[0].times[0]


def _is_fault(event: dict[str, Any]) -> bool:
    """What a script did inside a process, or the drill from outside: its own notes carry no level. Barriers only order."""
    if event.get("event") == "fault_took_effect":
        return event.get("action") != "barrier"
    return "level" not in event and event.get("event") != "output"


def _named(event: dict[str, Any]) -> str:
    worker = f" {event['worker_name']}" if "worker_name" in event else ""
    if event.get("event") == "fault_took_effect":
        return f"{event.get('action')}{worker} at {event.get('point')}".replace("_", " ")
    return f"{event.get('event')}{worker}".replace("_", " ")


def _time(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None
