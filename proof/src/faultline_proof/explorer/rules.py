"""The rules of the protocol in plain Python, one step after the other, with nothing concurrent about them.

Every answer of the database is put to them, in the order in which the steps took effect. What was done in a transaction is
judged twice: when it was answered, and again at the commit, against what others have committed meanwhile. Where a guard
lets somebody in between, the second judgement says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from psycopg.errors import DeadlockDetected

from faultline.core.errors import IllegalTransition, KeyConflict, StaleLease
from faultline.core.model import Enqueued, JobState, Lease, Reaped, Reason, Submission, Unwritten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from faultline_proof.explorer.steps import Step


_NO_JOB_CHANGES_BY = ("a standby is promoted", "heartbeat")


class Wrong(Exception):
    """The database did what it must not do. The text says what."""


@dataclass(frozen=True, slots=True)
class Deed:
    """A step and its answer, which may be an error."""

    who: str
    step: Step
    answer: Any
    #: How often time had jumped by then.
    at: int = 0
    #: Whether somebody else was inside a transaction, so that rows may have been locked.
    in_company: bool = False
    #: It was judged when it was answered, and is judged again as others see it: at the commit.
    again: bool = False


@dataclass(slots=True)
class Expected:
    """One job as it must be."""

    queue: str
    max_attempts: int
    state: JobState = JobState.QUEUED
    token: int = 0
    owner: str | None = None
    attempt: int = 0
    started: bool = False
    #: The number of the jump of time that ends the lease.
    expires: int = 0
    #: Whether `prune` may forget it.
    ended_long_ago: bool = False
    journal: Counter[tuple[str, int, str | None, str]] = field(default_factory=Counter)
    steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    effects: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Expected:
        return replace(self, journal=self.journal.copy(), steps=self.steps.copy(), effects=self.effects.copy())

    def is_held_by(self, lease: Lease) -> bool:
        return self.state is JobState.RUNNING and (self.token, self.owner) == (lease.fencing_token, lease.owner)

    def was_completed_by(self, lease: Lease) -> bool:
        return self.state is JobState.SUCCEEDED and (self.token, self.owner) == (lease.fencing_token, lease.owner)

    def why_refused(self, lease: Lease) -> Reason:
        if self.is_held_by(lease):
            return Reason.LEASE_EXPIRED
        if self.token != lease.fencing_token or self.owner not in (None, lease.owner):
            return Reason.TOKEN_MISMATCH
        return Reason.NOT_RUNNING if self.state.ended else Reason.LEASE_LOST

    def let_go(self, state: JobState) -> None:
        self.state, self.owner = state, None

    def __str__(self) -> str:
        return f"the job is {self.state}, token {self.token}{f' of {self.owner}' if self.owner else ''}"


class Rules:
    """What is true after the deeds taken so far."""

    def __init__(self, floor: int) -> None:
        self.jobs: dict[UUID, Expected] = {}
        #: No token is granted at or below it.
        self.floor = floor
        #: What the journal tells of jobs that were pruned.
        self.pruned: dict[UUID, Counter[tuple[str, int, str | None, str]]] = {}
        #: The job and the arguments that a key, or a caller's own id, stands for.
        self.keys: dict[object, tuple[UUID, str]] = {}

    def copy(self) -> Rules:
        other = Rules(self.floor)
        other.jobs = {job_id: job.copy() for job_id, job in self.jobs.items()}
        other.pruned = dict(self.pruned)
        other.keys = dict(self.keys)
        return other

    def take(self, deed: Deed) -> None:
        """Take note of a deed, or raise `Wrong`."""
        judges = {
            "enqueue": self._enqueue,
            "claim": self._claim,
            "reap": self._reap,
            "fence": self._fence,
            "effect": self._effect,
            "cancel": self._cancel,
            "retry": self._retry,
            "record_refusal": self._record_refusal,
            "recover": self._recover,
            "prune": self._prune,
            "end long ago": self._end_long_ago,
        }
        if deed.step.verb not in _NO_JOB_CHANGES_BY:
            judges.get(deed.step.verb, self._write)(deed)

    def _enqueue(self, deed: Deed) -> None:
        if isinstance(deed.answer, KeyConflict):
            if all(self._meaning(job) in (None, job.args) for job in deed.step.submissions):
                raise Wrong(f"{deed.who}'s enqueue was refused, though nobody had used its key for anything else")
            return
        placed: list[Enqueued] = deed.answer
        for job, place in zip(deed.step.submissions, placed, strict=True):
            key = job.idempotency_key or job.id
            if key not in self.keys:
                if not place.created and deed.again:
                    continue  # it was known, and pruned before this was committed
                if not place.created:
                    raise Wrong(f"{deed.who}'s enqueue was answered with a job that nobody has enqueued")
                journal = self.pruned.pop(place.job_id, Counter())
                self.jobs[place.job_id] = Expected(str(job.queue), job.max_attempts or 5, journal=journal)
                if key is not None:
                    self.keys[key] = (place.job_id, job.args)
            elif self._meaning(job) != job.args:
                raise Wrong(f"{deed.who}'s enqueue was accepted, though its key stands for other arguments")
            elif place != Enqueued(self.keys[key][0], created=False):
                raise Wrong(f"{deed.who}'s enqueue made a second job for one key")

    def _meaning(self, job: Submission) -> str | None:
        known = self.keys.get(job.idempotency_key or job.id)
        return None if known is None else known[1]

    def _claim(self, deed: Deed) -> None:
        leases: list[Lease] = deed.answer
        for lease in leases:
            job = self._job(lease.job_id, deed)
            if job.state is not JobState.QUEUED:
                raise Wrong(f"{deed.who} was granted token {lease.fencing_token}, when {job}")
            if lease.fencing_token != max(job.token, self.floor) + 1:
                raise Wrong(
                    f"{deed.who} was granted token {lease.fencing_token} of a job whose last one is {job.token},"
                    f" and the floor is {self.floor}"
                )
            if lease.attempt != job.attempt + 1:
                raise Wrong(f"{deed.who} was granted attempt {lease.attempt} of a job that has used {job.attempt}")
            job.state, job.token, job.owner, job.attempt = JobState.RUNNING, lease.fencing_token, lease.owner, lease.attempt
            job.expires, job.started = deed.at + 1, False
        waiting = [job for job in self.jobs.values() if job.queue == deed.step.word and job.state is JobState.QUEUED]
        if waiting and not deed.again and not deed.in_company:
            raise Wrong(f"{deed.who}'s claim left out a job that waits, though nobody else held it")

    def _reap(self, deed: Deed) -> None:
        reaped: list[Reaped] = deed.answer
        for one in reaped:
            job = self._job(one.job_id, deed)
            if job.state is not JobState.RUNNING or (job.token, job.owner) != (one.fencing_token, one.owner):
                raise Wrong(f"{deed.who} reaped token {one.fencing_token} of {one.owner}, when {job}")
            if job.expires > deed.at:
                raise Wrong(f"{deed.who} reaped token {one.fencing_token}, whose lease had not run out")
            job.journal["lease_reaped", job.token, job.owner, "lease_expired"] += 1
            spent = job.started and job.attempt >= job.max_attempts
            job.let_go(JobState.FAILED if spent else JobState.QUEUED)
            # An attempt counts if its start is on record; otherwise it is given back.
            job.attempt, job.started = job.attempt - (not job.started), False
        expired = [job for job in self.jobs.values() if job.state is JobState.RUNNING and job.expires <= deed.at]
        if expired and not deed.again and not deed.in_company:
            raise Wrong(f"{deed.who}'s reap left out a lease that has run out, though nobody else held the row")

    def _fence(self, deed: Deed) -> None:
        (lease,) = deed.step.leases
        job = self.jobs[lease.job_id]
        good = job.is_held_by(lease) and job.expires > deed.at
        if not isinstance(deed.answer, StaleLease):
            if not good:
                moment = "committed" if deed.again else "let through"
                raise Wrong(
                    f"{deed.who}'s fence with token {lease.fencing_token} was {moment} ({job.why_refused(lease)}): {job}"
                )
        elif good or deed.answer.reason != job.why_refused(lease):
            raise Wrong(f"{deed.who}'s fence with token {lease.fencing_token} was refused ({deed.answer.reason}): {job}")

    def _effect(self, deed: Deed) -> None:
        (lease,) = deed.step.leases
        self.jobs[lease.job_id].effects[lease.fencing_token] += 1

    def _cancel(self, deed: Deed) -> None:
        job = self._named(deed)
        too_late = job.state in (JobState.SUCCEEDED, JobState.FAILED)
        if isinstance(deed.answer, IllegalTransition) != too_late:
            raise Wrong(f"{deed.who}'s cancel was {'accepted' if too_late else 'refused'}: {job}")
        if not too_late and job.state is not JobState.CANCELLED:
            job.journal["cancelled", job.token, job.owner, ""] += 1
            job.let_go(JobState.CANCELLED)

    def _retry(self, deed: Deed) -> None:
        job = self._named(deed)
        ended_badly = job.state in (JobState.FAILED, JobState.CANCELLED)
        if isinstance(deed.answer, IllegalTransition) == ended_badly:
            raise Wrong(f"{deed.who}'s retry was {'refused' if ended_badly else 'accepted'}: {job}")
        if ended_badly:
            job.journal["retried", job.token, None, ""] += 1
            job.attempt, job.started = 0, False
            job.let_go(JobState.QUEUED)

    def _record_refusal(self, deed: Deed) -> None:
        (lease,) = deed.step.leases
        job = self.jobs[lease.job_id]
        good = job.is_held_by(lease) and job.expires > deed.at
        recorded = [refusal.reason for refusal in deed.answer.stale]
        if recorded != ([] if good else [job.why_refused(lease)]):
            raise Wrong(f"{deed.who}'s refusal of token {lease.fencing_token} is on record as {recorded}: {job}")
        for reason in recorded:
            job.journal["stale_write_blocked", lease.fencing_token, lease.owner, f"fence: {reason}"] += 1

    def _recover(self, deed: Deed) -> None:
        self.floor = max(self.floor, deed.step.floor)
        running = [job for job in self.jobs.values() if job.state is JobState.RUNNING]
        if deed.answer != (self.floor, sum(job.token < self.floor for job in running), len(running)):
            raise Wrong(f"{deed.who}'s recover answered {deed.answer}, when {len(running)} jobs were running")
        for job in running:
            job.token = max(job.token, self.floor)
            job.journal["recovered", job.token, job.owner, ""] += 1
            job.let_go(JobState.QUEUED)
            job.attempt, job.started = job.attempt - 1, False

    def _end_long_ago(self, deed: Deed) -> None:
        self._named(deed).ended_long_ago = True

    def _prune(self, deed: Deed) -> None:
        old = {job_id: job for job_id, job in self.jobs.items() if job.ended_long_ago and job.state.ended}
        if deed.answer != len(old) and (deed.answer or not deed.in_company):
            raise Wrong(f"{deed.who} pruned {deed.answer} jobs, when {len(old)} had ended long ago")
        for job_id, job in old.items() if deed.answer else ():
            self.floor = max(self.floor, job.token)
            self.pruned[job_id] = self.jobs.pop(job_id).journal
            self.keys.pop(job_id, None)

    def _write(self, deed: Deed) -> None:
        """Take a verb that carries leases: each of them is accepted, refused or busy."""
        unwritten: Unwritten = deed.answer
        refused = {refusal.lease: refusal.reason for refusal in unwritten.stale}
        for lease in deed.step.leases:
            job = self.jobs[lease.job_id]
            write = f"{deed.who}'s {deed.step.verb} with token {lease.fencing_token}"
            sent_twice = deed.step.verb in ("complete", "renew") and job.was_completed_by(lease)
            good = job.is_held_by(lease) or sent_twice
            if lease in unwritten.busy:
                if not deed.again and not (job.is_held_by(lease) and deed.in_company):
                    raise Wrong(f"{write} was told that the row is busy: {job}")
            elif lease in refused:
                if not deed.again and (good or refused[lease] != job.why_refused(lease)):
                    raise Wrong(f"{write} was refused ({refused[lease]}): {job}")
                reason = f"{deed.step.verb}: {refused[lease]}"
                job.journal["stale_write_blocked", lease.fencing_token, lease.owner, reason] += 1
            elif not good:
                raise Wrong(f"{write} was {'committed' if deed.again else 'accepted'} ({job.why_refused(lease)}): {job}")
            elif not sent_twice:
                _write_one(job, deed)

    def _named(self, deed: Deed) -> Expected:
        assert deed.step.job_id is not None  # noqa: S101 - for the type checker
        return self.jobs[deed.step.job_id]

    def _job(self, job_id: UUID, deed: Deed) -> Expected:
        if job_id not in self.jobs:
            raise Wrong(f"{deed.who}'s {deed.step.verb} was answered with a job that is none of this schedule's")
        return self.jobs[job_id]


def _write_one(job: Expected, deed: Deed) -> None:
    """What an accepted write does to its job."""
    match deed.step.verb:
        case "complete":
            job.state = JobState.SUCCEEDED
        case "renew":
            job.expires = deed.at + 1
        case "release":
            job.let_go(JobState.QUEUED)
            job.attempt, job.started = job.attempt - 1, False
        case "record_start":
            job.started = True
        case "step":
            if deed.step.word not in {name for name, _ in job.steps}:
                job.steps[deed.step.word, job.token] += 1
        case "fail":
            last = deed.step.word == "fail" or job.attempt >= job.max_attempts
            job.journal["attempt_failed", job.token, job.owner, ""] += 1
            job.let_go(JobState.FAILED if last else JobState.QUEUED)
        case "progress":
            pass  # replaces what stood there, and is not looked at
        case verb:
            raise AssertionError(f"the rules do not know the verb {verb}")


#: What a verb may raise; everything else is an error that nobody foresaw.
_FORESEEN: dict[str, type[Exception]] = {
    "enqueue": KeyConflict,
    "fence": StaleLease,
    "cancel": IllegalTransition,
    "retry": IllegalTransition,
}


def _foresee(deed: Deed) -> None:
    foreseen = deed.step.foreseen or _FORESEEN.get(deed.step.verb, ())
    if isinstance(deed.answer, Exception) and not isinstance(deed.answer, foreseen):
        first_line = str(deed.answer).splitlines()[0]
        raise Wrong(f"{deed.who}'s {deed.step.verb} ended with {type(deed.answer).__name__}: {first_line}")


class Referee:
    """Hears the answers, and knows who is inside a transaction and what time it is."""

    def __init__(self, *, floor: int, may_deadlock: bool, by_answers: bool = True) -> None:
        self._may_deadlock = may_deadlock
        #: False: only errors that nobody foresaw are wrong; the end is judged by somebody else.
        self._by_answers = by_answers
        self._so_far = _Hearing(Rules(floor))

    @property
    def jobs(self) -> dict[UUID, Expected]:
        """Every job as it must be by now, once all transactions have ended."""
        return self._so_far.rules.jobs

    def hear(self, turns: Sequence[Sequence[Deed]], waiting: Sequence[str]) -> None:
        """Judge answers that came at once. A commit lets several others go on, and nobody sees who was first.

        They are right if one order of them is. If none is, the order that made sense for longest tells what is wrong.
        """
        if not self._by_answers:
            for deed in (deed for turn in turns for deed in turn):
                _foresee(deed)
            return
        found: list[tuple[int, Wrong]] = []
        for order in permutations(turns):
            hearing = self._so_far.copy()
            try:
                for deed in (deed for turn in order for deed in turn):
                    hearing.hear(deed, waiting, may_deadlock=self._may_deadlock)
            except Wrong as wrong:
                found.append((hearing.heard, wrong))
            else:
                self._so_far = hearing
                return
        raise max(found, key=lambda one: one[0])[1]


@dataclass(slots=True)
class _Hearing:
    rules: Rules
    #: What each program did in its open transaction so far.
    open: dict[str, list[Deed]] = field(default_factory=dict)
    time: int = 0
    heard: int = 0

    def copy(self) -> _Hearing:
        return _Hearing(self.rules.copy(), {who: list(deeds) for who, deeds in self.open.items()}, self.time, self.heard)

    def hear(self, deed: Deed, waiting: Sequence[str], *, may_deadlock: bool) -> None:
        who = deed.who
        company = {*self.open, *waiting} - {who}
        deed = replace(deed, at=self.time, in_company=bool(company))
        if may_deadlock and isinstance(deed.answer, DeadlockDetected):
            self.open.pop(who, None)  # PostgreSQL has undone all of it
            return
        verb = deed.step.verb
        _foresee(deed)
        match verb:
            case "begin":
                self.open[who] = []
            case "commit":
                for done in self.open.pop(who):
                    self.rules.take(done)
            case "rollback":
                del self.open[who]
            case "the leases run out":
                self.time += 1
            case _ if who not in self.open:
                self.rules.take(deed)
            case _:
                self._hear_in_transaction(deed)
        self.heard += 1

    def _hear_in_transaction(self, deed: Deed) -> None:
        """It sees what is committed and what it has done itself; nobody else sees any of that yet."""
        seen = self.rules.copy()
        for done in self.open[deed.who]:
            seen.take(done)
        seen.take(deed)
        if isinstance(deed.answer, Exception):
            del self.open[deed.who]
        else:
            self.open[deed.who].append(replace(deed, again=True))
