"""The protocol in a page of Python: what every verb answers and what becomes of the job. No locks, no indexes, no SQL.

Each method says what the database must answer, and changes the model as the database must change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from faultline.core.errors import FaultlineError, IllegalTransition, JobNotFound, KeyConflict
from faultline.core.model import JobState, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from faultline.core.model import Bound, Failure, Lease, Submission

#: (job, token, reason, current token) of a write that was refused.
Refused = tuple["UUID", int, Reason, int | None]

QUEUED, RUNNING, SUCCEEDED = JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED
FAILED, CANCELLED = JobState.FAILED, JobState.CANCELLED


@dataclass
class Job:
    id: UUID
    work: tuple[str, str]
    priority: int
    max_attempts: int
    lease: timedelta
    key: str | None
    created_at: datetime
    next_run_at: datetime
    token: int = 0
    state: JobState = QUEUED
    owner: str | None = None
    attempt: int = 0
    reaps: int = 0
    renewals: int = 0
    started: bool = False
    claimed_at: datetime | None = None
    expires_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    progress: Any = None
    result: Any = None
    steps: dict[str, Any] = field(default_factory=dict)

    @property
    def is_to_be_marked(self) -> bool:
        """An attempt that could end the job for good, or follows a crash."""
        return self.attempt >= self.max_attempts or self.reaps > 0

    def as_shown(self) -> tuple[Any, ...]:
        """As the view shows it. The ledger keeps nothing of how a job got there."""
        always = (self.state, self.token, self.owner, self.attempt, self.claimed_at, self.finished_at, self.result, self.key)
        if self.state is SUCCEEDED:
            return (*always, None, None, None, None, None, self.progress)
        return (*always, self.next_run_at, self.expires_at, self.reaps, self.renewals, self.error, self.progress)

    def leave(self, state: JobState, *, counts: bool) -> None:
        """A lease has ended, and the job has not succeeded. `counts`: so has its attempt."""
        self.state, self.owner, self.expires_at = state, None, None
        self.attempt -= not counts


class Model:
    def __init__(self, now: datetime) -> None:
        self.now = now
        self.jobs: dict[UUID, Job] = {}
        self.keys: dict[str, tuple[UUID, tuple[str, str], datetime]] = {}
        self.token_floor = 0
        self.pruned = 0
        #: (event, job, token, owner), as often as it is on record.
        self.journal: Counter[tuple[str, UUID | None, int | None, str | None]] = Counter()
        #: Whose starts were taken back, and when.
        self._taken: list[tuple[str, datetime]] = []

    # Submissions

    def known(self, submission: Submission) -> UUID | None:
        """The job that a submission names already, if it does. Raises if it is meant for other work."""
        work = (submission.task, submission.args)
        if submission.idempotency_key in self.keys:
            job_id, same, _ = self.keys[submission.idempotency_key]
        elif submission.idempotency_key is None and submission.id in self.jobs:
            job_id, same = submission.id, self.jobs[submission.id].work
        else:
            return None
        if work != same:
            raise KeyConflict
        return job_id

    def enqueue(self, submission: Submission, job_id: UUID) -> None:
        work = (submission.task, submission.args)
        due = self.now + timedelta(seconds=submission.delay_seconds or 0)
        assert submission.lease_seconds is not None
        self.jobs[job_id] = Job(
            job_id,
            work,
            submission.priority or 0,
            submission.max_attempts or 5,
            timedelta(seconds=submission.lease_seconds),
            submission.idempotency_key,
            self.now,
            due,
        )
        if submission.idempotency_key is not None:
            self.keys[submission.idempotency_key] = (job_id, work, self.now)

    # Leases

    def claim(self, owner: str, max_jobs: int, bounds: Mapping[int, Bound]) -> list[Job]:
        due = [
            job
            for job in self.jobs.values()
            if job.state is QUEUED and job.next_run_at <= self.now and not _lies_below(job, bounds.get(job.priority))
        ]
        granted = sorted(due, key=lambda job: (job.priority, job.next_run_at, job.id))[:max_jobs]
        for job in granted:
            token = max(job.token, self.token_floor) + 1
            job.state, job.owner, job.token, job.attempt = RUNNING, owner, token, job.attempt + 1
            job.claimed_at, job.expires_at, job.started, job.renewals = self.now, self.now + job.lease, False, 0
        return granted

    def holding(self, lease: Lease) -> Job | None:
        """The job of a lease that is good."""
        job = self.jobs.get(lease.job_id)
        good = job is not None and (job.state, job.token, job.owner) == (RUNNING, lease.fencing_token, lease.owner)
        return job if good else None

    def refused(self, leases: Iterable[Lease]) -> Counter[Refused]:
        """Why nothing is written for these. Each is told and on record once, however often it stands in the batch."""
        proofs = {(lease.job_id, lease.fencing_token, lease.owner) for lease in leases}
        self.journal.update(("stale_write_blocked", *proof) for proof in proofs)
        return Counter((job_id, token, *self._reason(job_id, token, owner)) for job_id, token, owner in proofs)

    def _reason(self, job_id: UUID, token: int, owner: str) -> tuple[Reason, int | None]:
        job = self.jobs.get(job_id)
        if job is None:
            return Reason.NOT_RUNNING, None
        if job.token != token or job.owner not in (None, owner):
            return Reason.TOKEN_MISMATCH, job.token
        return (Reason.NOT_RUNNING if job.state.ended else Reason.LEASE_LOST), job.token

    def renew(self, leases: Sequence[Lease]) -> Counter[Refused]:
        for job in self._held(leases):
            job.expires_at = self.now + job.lease
            job.renewals += 1
        # What was completed under a lease needs no renewal, and its holder did nothing wrong.
        return self.refused(lease for lease in leases if not self.holding(lease) and not self._completed_by(lease))

    def record_start(self, leases: Sequence[Lease]) -> Counter[Refused]:
        for job in self._held(leases):
            job.started = True
        return self.refused(lease for lease in leases if not self.holding(lease))

    def complete(self, leases: Sequence[Lease], results: Sequence[Any]) -> Counter[Refused]:
        for lease, result in zip(leases, results, strict=True):
            job = self.holding(lease)
            if job is not None:
                job.state, job.result, job.finished_at, job.expires_at = SUCCEEDED, result, self.now, None
        return self.refused(lease for lease in leases if not self._completed_by(lease))

    def _completed_by(self, lease: Lease) -> bool:
        job = self.jobs.get(lease.job_id)
        return job is not None and (job.state, job.token, job.owner) == (SUCCEEDED, lease.fencing_token, lease.owner)

    def fail(self, leases: Sequence[Lease], failure: Failure) -> Counter[Refused]:
        stale = [lease for lease in leases if not self.holding(lease)]
        for job in self._held(leases):
            again = failure.then == "retry" and job.attempt < job.max_attempts
            event = "cancelled" if failure.then == "cancel" else "attempt_failed"
            self.journal[event, job.id, job.token, job.owner] += 1
            job.leave(QUEUED if again else CANCELLED if failure.then == "cancel" else FAILED, counts=True)
            job.error = failure.error
            if again:
                wait = min(3600, 2**job.attempt) if failure.delay_seconds is None else failure.delay_seconds
                job.next_run_at = self.now + timedelta(seconds=wait)
            else:
                job.finished_at = self.now
        return self.refused(stale)

    def release(self, leases: Sequence[Lease], delay_seconds: float | None) -> Counter[Refused]:
        stale = [lease for lease in leases if not self.holding(lease)]
        for job in self._held(leases):
            job.leave(QUEUED, counts=False)
            if delay_seconds is not None:
                job.next_run_at = self.now + timedelta(seconds=delay_seconds)
        return self.refused(stale)

    def fence(self, lease: Lease) -> tuple[Reason, int | None] | None:
        """None: it passes."""
        job = self.holding(lease)
        if job is None:
            return self._reason(lease.job_id, lease.fencing_token, lease.owner)
        assert job.expires_at is not None
        return None if job.expires_at > self.now else (Reason.LEASE_EXPIRED, job.token)

    def record_refusal(self, lease: Lease) -> Counter[Refused]:
        refusal = self.fence(lease)
        if refusal is None:
            return Counter()
        self.journal["stale_write_blocked", lease.job_id, lease.fencing_token, lease.owner] += 1
        return Counter([(lease.job_id, lease.fencing_token, *refusal)])

    def step(self, lease: Lease, name: str, result: Any) -> Counter[Refused]:
        job = self.holding(lease)
        if job is None:
            return self.refused([lease])
        job.steps.setdefault(name, result)
        return Counter()

    def progress(self, lease: Lease, progress: Any) -> Counter[Refused]:
        job = self.holding(lease)
        if job is None:
            return self.refused([lease])
        job.progress = progress
        return Counter()

    def _held(self, leases: Iterable[Lease]) -> list[Job]:
        """Each job once, though its lease may stand twice in a batch."""
        held = {job.id: job for lease in leases if (job := self.holding(lease)) is not None}
        return list(held.values())

    # What others do to jobs

    def expired(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.expires_at is not None and job.expires_at <= self.now]

    def reap(self, lost: Sequence[Job]) -> set[tuple[UUID, int, str | None, JobState]]:
        crowds = Counter(_worker(job) for job in self.jobs.values() if job.state is RUNNING and job.started)
        verdicts = [
            (
                job,
                job.started and crowds[_worker(job)] <= 1 and not self._had_company(job),
                job.started and job.attempt >= job.max_attempts,
            )
            for job in lost
        ]
        self._taken += [(_worker(job), self.now) for job in lost if job.started]
        # A start that was asked for and is not on record was none: such a job is not suspected any further.
        suspected = [job for job in lost if job.started or job.reaps == 0]
        answer = set()
        for job, guilty, spent in verdicts:
            owner = job.owner
            self.journal["lease_reaped", job.id, job.token, owner] += 1
            job.leave(FAILED if spent else QUEUED, counts=guilty or spent)
            if spent:
                job.error, job.finished_at = "the worker died or lost its lease during the last attempt", self.now
            answer.add((job.id, job.token, owner, job.state))
        for job in suspected:
            job.reaps += 1
        return answer

    def _had_company(self, job: Job) -> bool:
        """Another start of its worker's was taken back since that was last heard of it: nobody knows which one killed it."""
        assert job.expires_at is not None
        heard_at = job.expires_at - job.lease
        return any(worker == _worker(job) and at > heard_at for worker, at in self._taken)

    def cancel(self, job_id: UUID) -> type[FaultlineError] | JobState:
        job = self.jobs.get(job_id)
        if job is None:
            return JobNotFound
        if job.state in (SUCCEEDED, FAILED):
            return IllegalTransition
        if job.state is not CANCELLED:
            self.journal["cancelled", job.id, job.token, job.owner] += 1
            job.leave(CANCELLED, counts=True)
            job.finished_at, job.error = self.now, "cancelled: not needed"
        return CANCELLED

    def retry(self, job_id: UUID) -> type[FaultlineError] | JobState:
        job = self.jobs.get(job_id)
        if job is None:
            return JobNotFound
        if job.state not in (FAILED, CANCELLED):
            return IllegalTransition
        self.journal["retried", job.id, job.token, None] += 1
        job.state, job.next_run_at, job.attempt, job.reaps = QUEUED, self.now, 0, 0
        job.finished_at = job.error = None
        return QUEUED

    def recover(self, floor: int) -> tuple[int, int, int]:
        self.token_floor = max(self.token_floor, floor)
        self.journal["setting_changed", None, None, None] += 1
        running = [job for job in self.jobs.values() if job.state is RUNNING]
        lifted = [job for job in running if job.token < self.token_floor]
        for job in running:
            job.token = max(job.token, self.token_floor)
            self.journal["recovered", job.id, job.token, job.owner] += 1
            job.leave(QUEUED, counts=False)
        return self.token_floor, len(lifted), len(running)

    def prune(self, what: str, older_than: timedelta) -> int:
        horizon = self.now - older_than
        if what == "keys":
            kept = {job.id for job in self.jobs.values() if job.state is not SUCCEEDED}
            old = [key for key, (job_id, _, at) in self.keys.items() if at < horizon and job_id not in kept]
            for key in old:
                del self.keys[key]
            self.pruned += len(old)
            return len(old)
        states = (SUCCEEDED,) if what == "ledger" else (FAILED, CANCELLED)
        gone = [job for job in self.jobs.values() if job.state in states and job.finished_at and job.finished_at < horizon]
        for job in gone:
            del self.jobs[job.id]
            self.token_floor = max(self.token_floor, job.token)
        self.pruned += len(gone)
        return len(gone)


def _worker(job: Job) -> str:
    return (job.owner or "").split("/")[0]


def _lies_below(job: Job, bound: Bound | None) -> bool:
    return bound is not None and (job.next_run_at, job.id) < (bound.run_at, bound.id)
