"""Histories told by hand, each call after the one before, and random ones that a small model says are legal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from faultline_proof.checker import check
from faultline_proof.faults import Fault, Limits
from faultline_proof.history import Effect, Final, History, Operation
from faultline_proof.reads.holdings import (
    CallHeld,
    EdgeHeld,
    JobHeld,
    PermitHeld,
    SignalHeld,
    StepHeld,
    TickHeld,
    Transition,
)

if TYPE_CHECKING:
    from faultline_proof.history import Outcome


class Tale:
    """What was called and what is held at the end. A call takes a second, and the next one begins a second later."""

    def __init__(self, *, forged: bool = False) -> None:
        self.forged = forged
        self.history = History()
        self.final = Final(at=0.0, jobs=[])
        self.limits: dict[str, Any] = {}
        self.now = 0.0

    def call(
        self, verb: str, job_id: str | None = "j", *, outcome: Outcome = "ok", since: float | None = None, **facts: Any
    ) -> Operation:
        """`since`: it was invoked that much earlier, beside what has been told before."""
        self.now += 2
        operation = self.history.invoke("p", verb, self.now - 1 if since is None else since, job_id=job_id, **facts)
        if outcome == "ok":
            operation.ok(self.now)
        elif outcome == "failed":
            operation.failed(self.now, "refused")
        else:
            operation.unknown(self.now)
        return operation

    def by(self, owner: str, token: int, verb: str, **facts: Any) -> Operation:
        return self.call(verb, token=token, owner=owner, **facts)

    def claimed(self, token: int = 1) -> None:
        """The job `j` is there and was granted once, to A."""
        self.call("enqueue")
        self.by("a/1", token, "claim")

    def taken_over(self) -> None:
        """A lost its lease, and B was granted the job."""
        self.claimed()
        self.by("a/1", 1, "reap")
        self.entry("lease_reaped", "running", "queued", 1)
        self.by("b/1", 2, "claim")

    def row(self, state: str, token: int = 0, owner: str | None = None, job_id: str = "j", **facts: Any) -> None:
        ended = state in ("succeeded", "failed", "cancelled")
        values: dict[str, Any] = {
            "task": "t",
            "attempt": 1,
            "max_attempts": 5,
            "created_at": 0.0,
            "due_at": None,
            "finished_at": self.now if ended else None,
        }
        self.final.jobs.append(JobHeld(job_id, state, token=token, owner=owner, **(values | facts)))

    def entry(
        self, event: str, was: str, state: str, token: int, token_was: int | None = None, error: str | None = None
    ) -> None:
        before = token if token_was is None else token_was
        self.final.journal.append(Transition("j", event, was, before, state, token, error))

    def effect(self, token: int | None, key: str = "j") -> None:
        self.final.effects.append(Effect(key, token))

    def step(self, name: str, token: int) -> None:
        self.final.steps.append(StepHeld("j", name, token))

    def waits(self, kind: str, number: str = "1", job_id: str = "j", **facts: Any) -> None:
        values: dict[str, Any] = {
            "name": "n", "awaited": True, "begun_at": 0.0, "until": None, "total": None, "fast": False, "fresh": False,
            "outcome": None,
        }  # fmt: skip
        call_id = len(self.final.calls) + 1
        self.final.calls.append(CallHeld(call_id, job_id, number, kind, **(values | facts)))

    def child(self, job_id: str, index: int = 0, call_id: int = 1) -> None:
        self.final.edges.append(EdgeHeld(call_id, index, job_id))

    def kept_signal(self, key: str, received_by: str | None = None, job_id: str = "j", **facts: Any) -> None:
        values: dict[str, Any] = {"name": "n", "for_call": None, "sent_at": self.now, "sent_by": None}
        held = SignalHeld(len(self.final.signals) + 1, job_id, key=key, received_by=received_by, **(values | facts))
        self.final.signals.append(held)

    def change(self, verb: str, *said: Any, **facts: Any) -> Operation:
        """A change of limits: the queue, a key, and what is said of it."""
        return self.call(verb, None, detail=json.dumps(said), **facts)

    def given_out(self, group: str, holding: int, queue: str = "q") -> None:
        self.final.permits.append(PermitHeld(queue, group, holding))

    def took(self, cost: float, number: int = 1, job_id: str = "j", **facts: Any) -> Operation:
        """From the budget b, by A."""
        return self.call("take_budget", job_id, token=1, owner="a/1", detail=json.dumps(["b", cost, number]), **facts)

    def tick(self, at: float, job_id: str | None = None, until: float | None = None, **facts: Any) -> None:
        outcome = facts.pop("outcome", "fired" if job_id else "missed")
        self.final.ticks.append(TickHeld("nightly", at, until, outcome, job_id, **facts))

    def faults(self) -> list[Fault]:
        self.final.at = self.now
        return check(self.history, self.final, Limits(**self.limits))


# Random legal runs


@dataclass
class _Job:
    job_id: str
    acknowledged: bool
    state: str = "queued"
    token: int = 0
    owner: str | None = None
    attempt: int = 0
    #: Every lease that its holder knows of, good or not.
    leases: list[tuple[int, str]] = field(default_factory=list)
    ledger_owner: str | None = None


class LegalRun:
    """A run that keeps every rule: a model decides what is true, and chance which answers are lost."""

    def __init__(self) -> None:
        self.tale = Tale()
        self.tale.limits["effects_of"] = frozenset({"t"})
        self.jobs: list[_Job] = []

    def enqueue(self, place: int, *, lost: bool, arrives: bool) -> None:
        job_id = f"job-{len(self.jobs)}-{place}"
        self._tell("enqueue", job_id, accepted=True, lost=lost)
        if arrives or not lost:
            self.jobs.append(_Job(job_id, acknowledged=not lost))

    def claim(self, place: int, *, lost: bool, arrives: bool) -> None:
        waiting = [job for job in self.jobs if job.state == "queued"]
        owner = f"w/{self.tale.now}"
        if not waiting or (lost and not arrives):
            self.tale.call("claim", None, outcome="unknown" if lost else "ok", owner=owner)
            return
        job = waiting[place % len(waiting)]
        job.state, job.token, job.owner, job.attempt = "running", job.token + 1, owner, job.attempt + 1
        job.leases.append((job.token, owner))
        if not lost:
            self.tale.call("claim", job.job_id, token=job.token, owner=owner)
        else:
            self.tale.call("claim", None, outcome="unknown", owner=owner)
            if place % 2:
                self.tale.call("claimed_by", job.job_id, token=job.token, owner=owner)

    def write(self, verb: str, place: int, *, lost: bool, arrives: bool) -> None:
        """By any lease that was ever granted: most of them are stale."""
        leases = [(job, lease) for job in self.jobs for lease in job.leases]
        if not leases:
            return
        job, (token, owner) = leases[place % len(leases)]
        good = (job.token, job.owner, job.state) == (token, owner, "running")
        again = verb == "complete" and job.state == "succeeded" and (job.token, job.ledger_owner) == (token, owner)
        if good and (arrives or not lost):
            self._apply(verb, job)
        self._tell(verb, job.job_id, accepted=good or again, lost=lost, token=token, owner=owner)

    def _apply(self, verb: str, job: _Job) -> None:
        match verb:
            case "complete":
                job.state, job.ledger_owner, job.owner = "succeeded", job.owner, None
                self.tale.effect(job.token, job.job_id)
            case "release":
                job.state, job.owner, job.attempt = "queued", None, job.attempt - 1
            case "fail":
                job.state, job.owner = ("queued" if job.attempt < 5 else "failed"), None
                self._journal(job, "attempt_failed", "running")

    def reap(self, place: int, *, lost: bool, arrives: bool) -> None:
        running = [job for job in self.jobs if job.state == "running"]
        if running and (arrives or not lost):
            job = running[place % len(running)]
            owner, job.state, job.owner, job.attempt = job.owner, "queued", None, job.attempt - 1
            self._journal(job, "lease_reaped", "running")
            if not lost:
                self.tale.call("reap", job.job_id, token=job.token, owner=owner)

    def cancel(self, place: int, *, lost: bool, arrives: bool) -> None:
        if self.jobs:
            job = self.jobs[place % len(self.jobs)]
            was, possible = job.state, job.state in ("queued", "running")
            if possible and (arrives or not lost):
                job.state, job.owner = "cancelled", None
                self._journal(job, "cancelled", was)
            self._tell("cancel", job.job_id, accepted=possible or was == "cancelled", lost=lost)

    def retry(self, place: int, *, lost: bool, arrives: bool) -> None:
        if self.jobs:
            job = self.jobs[place % len(self.jobs)]
            was, possible = job.state, job.state in ("failed", "cancelled")
            if possible and (arrives or not lost):
                job.state, job.attempt = "queued", 0
                self._journal(job, "retried", was)
            self._tell("retry", job.job_id, accepted=possible, lost=lost)

    def end(self) -> Tale:
        for job in self.jobs:
            owner = job.ledger_owner if job.state == "succeeded" else job.owner
            self.tale.row(job.state, job.token, owner, job.job_id, attempt=job.attempt)
        return self.tale

    def _tell(self, verb: str, job_id: str, *, accepted: bool, lost: bool, **facts: Any) -> None:
        self.tale.call(verb, job_id, outcome="unknown" if lost else "ok" if accepted else "failed", **facts)

    def _journal(self, job: _Job, event: str, was: str) -> None:
        self.tale.final.journal.append(Transition(job.job_id, event, was, job.token, job.state, job.token))


_MOVES = ("enqueue", "claim", "claim", "reap", "cancel", "retry")
_WRITES = ("complete", "complete", "release", "fail", "renew", "progress")


@st.composite
def legal_runs(draw: st.DrawFn) -> Tale:
    run = LegalRun()
    steps = st.tuples(st.sampled_from(_MOVES + _WRITES), st.integers(0, 999), st.integers(0, 3), st.booleans())
    for move, place, luck, arrives in draw(st.lists(steps, max_size=60)):
        words: dict[str, Any] = {"lost": luck == 3, "arrives": arrives}
        if move in _WRITES:
            run.write(move, place, **words)
        else:
            getattr(run, move)(place, **words)
    return run.end()
