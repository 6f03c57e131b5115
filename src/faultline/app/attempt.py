"""The running attempt of a job: what its async and its blocking side share. Nothing here waits or sends.

Several branches of a task (asyncio tasks, or threads that it started) may use one job at once. A transaction belongs to the
branch that opened it. It holds the lock on the job's row, so what another branch writes waits until it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

import psycopg

from faultline.core import events, forks
from faultline.core.bounds import STEP_NAME_LENGTH_MAX
from faultline.core.errors import ConfigError, FaultlineError, JobRejected, OutcomeUnknown, StaleLease
from faultline.core.model import JobState
from faultline.store.translation import is_about_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from faultline.app.held import Held
    from faultline.app.transaction import Transaction
    from faultline.core.host import Host
    from faultline.core.model import JobRecord, Settled
    from faultline.store.lending import Loan

#: As long as the server lets a transaction be idle. Branches that wait for each other end with an error then.
TURN_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
#: A task may meet with any number of errors and go on.
_SPARED_MAX = 20
#: Why an attempt is over that took longer than its task allows.
TIMED_OUT = "timed_out"

#: The transaction in which this branch runs, or in which it was started: a new asyncio task inherits it.
_inside: ContextVar[Transaction | None] = ContextVar("inside_transaction", default=None)
#: The steps in which this branch runs, likewise: (id of the attempt, name).
_steps_around: ContextVar[tuple[tuple[int, str], ...]] = ContextVar("steps_around", default=())


class Attempt:
    """The running attempt, with what an external system needs to recognise a repeated or stale call."""

    def __init__(self, hold: Held, host: Host, timeout_seconds: float | None) -> None:
        self._hold = hold
        lease = hold.lease
        #: The id of the job.
        self.id: UUID = lease.job_id
        #: The name of its task.
        self.task: str = lease.task
        #: Which attempt this is, from 1 on. One that was given back, or that the database failed, is not counted.
        self.attempt: int = lease.attempt
        #: After so many failed attempts the job fails for good.
        self.max_attempts: int = lease.max_attempts
        #: Grows with every claim of this job. An outside system that remembers the greatest one seen can refuse older ones.
        self.fencing_token: int = lease.fencing_token
        #: The same in every attempt: the key given at the submission, or the job's id.
        self.idempotency_key: str = lease.idempotency_key
        #: When this attempt is to be over, by this machine's clock; None if it may take as long as it likes.
        self.deadline: datetime | None = (
            None if timeout_seconds is None else datetime.fromtimestamp(host.seconds() + timeout_seconds, UTC)
        )
        self._monotonic = host.monotonic
        #: A call that is not answered for so long was kept up by the database.
        self._patience_seconds = min(_PATIENCE_SECONDS, (timeout_seconds or inf) / 2)
        self._transaction: Transaction | None = None
        #: What that transaction, or one that is about to begin, borrows.
        self._loan: Loan | None = None
        #: Results of steps that have run and are about to be written, as JSON text.
        self._given: dict[str, str] = {}
        #: Why nobody waits for this attempt any more, though its code may still run.
        self._over: str | None = None
        self._over_lock = threading.Lock()

    @property
    def lease_lost(self) -> bool:
        """True once the lease is lost: this attempt can write nothing more. Long computations should check it and stop."""
        return self._over is not None or self._hold.lost is not None

    def abandon(self, reason: str) -> None:
        """The worker gives this attempt up while its code may still run: nothing more is written. From any thread.

        Its open transaction is cut, so that the server rolls it back: it would go on to hold the job's row, and its commit
        would count although the attempt was already declared over. Its place among the jobs' connections is given to the
        next: the code that has it may never come back.
        """
        with self._over_lock:
            self._over = self._over or reason
            if self._transaction is not None:
                self._transaction.loan.call_in(self._transaction.raw)

    @property
    def timed_out(self) -> bool:
        return self._over == TIMED_OUT

    def _is_over(self) -> bool:
        return self._over is not None

    def _refuse_if_over(self) -> None:
        if self._hold.generation != forks.generation:
            # Its sessions, its locks and its turns are the parent's.
            raise ConfigError(
                f"job {self.id} belongs to another process; a forked process cannot write through it. Return the result to"
                " the task, or enqueue a job"
            )
        if self._over is not None:
            raise StaleLease(
                f"job {self.id} token {self.fencing_token}: this attempt is over ({self._over}); nothing was written",
                reason=self._over,
            )

    def _blame(self, error: BaseException, since: float) -> None:
        """Judge an error of a call of ours outside the job's transaction, made `since`."""
        if isinstance(error, psycopg.Error | FaultlineError):
            spared = not is_about_data(error)
        else:
            # The task's timeout, while the database did not answer. Most timeouts fall into calls that are answered soon.
            unanswered = self._monotonic() - since
            spared = isinstance(error, asyncio.CancelledError) and unanswered > self._patience_seconds
        if spared:
            self._spare(error)

    def _spare(self, error: BaseException) -> None:
        """Remember an error that the database caused: it must not use up an attempt."""
        self._hold.failed_by = [*(self._hold.failed_by or ()), error][-_SPARED_MAX:]

    # Branches

    def _own_transaction(self, branch: Callable[[], object]) -> Transaction | None:
        """The open transaction if it is this branch's own. Refuses a branch for which waiting would be a deadlock."""
        self._refuse_if_over()
        transaction = self._transaction
        if transaction is None or transaction.opener is branch():
            return transaction
        if _inside.get() is transaction:
            raise ConfigError(
                f"job {self.id}: this branch was started inside the job's transaction, but only the branch that opened it"
                " may use it; call job.step directly in that branch, or start this branch outside the transaction"
            )
        return None

    def _refuse_nesting(self, branch: Callable[[], object]) -> None:
        if self._own_transaction(branch) is not None:
            raise ConfigError(
                f"job {self.id} already has an open transaction here; a second one would wait for the first forever"
            )

    def _no_turn(self) -> ConfigError:
        self._refuse_if_over()
        return ConfigError(
            f"job {self.id} waited {TURN_SECONDS:g} s for another branch's transaction of this job to end; do they wait for"
            " each other?"
        )

    def _is_done_elsewhere(self, step: str, own: Transaction | None) -> bool:
        """Whether the step was run in another branch's open transaction: if it is done is known when that has ended."""
        transaction = self._transaction
        return transaction is not None and transaction is not own and step in transaction.steps

    @contextlib.contextmanager
    def _opened(self, transaction: Transaction) -> Iterator[None]:
        """From the fence to the end of the commit."""
        with self._over_lock:
            self._refuse_if_over()
            self._transaction = transaction
        self._hold.in_transaction = True
        token = _inside.set(transaction)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # left in another context than it was entered in
                _inside.reset(token)
            # Under the lock: once the connection is back in its pool it is somebody else's, and must not be cut.
            with self._over_lock:
                self._transaction = None
            self._hold.in_transaction = False

    @contextlib.contextmanager
    def _around(self, step: str) -> Iterator[None]:
        """Inside a step. A step inside itself would wait for itself."""
        around, this = _steps_around.get(), (id(self), step)
        if this in around:
            raise ConfigError(f"job {self.id}: step {step} is called inside itself; give the inner step another name")
        token = _steps_around.set((*around, this))
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                _steps_around.reset(token)

    # Refusals

    def _refuse_if_stale(self, verb: str, settled: Settled) -> None:
        if settled.stale:
            refusal = settled.stale[0]
            raise self._lost(verb, refusal.reason.value, refusal.current_token)

    def _lost(self, verb: str, reason: str, current_token: int | None) -> StaleLease:
        self._hold.lose(reason)
        self._hold.counts.refuse(verb, reason)
        events.emit(
            "stale_write_blocked",
            job_id=self.id,
            stale_token=self.fencing_token,
            current_token=current_token,
            reason=reason,
        )
        return StaleLease(
            f"job {self.id} token {self.fencing_token}: the lease is lost ({reason}); nothing was written",
            reason=reason,
            current_token=current_token,
        )

    def _was_completed_by_us(self, found: JobRecord | None) -> bool:
        lease = self._hold.lease
        return (
            found is not None
            and found.state is JobState.SUCCEEDED
            and (found.fencing_token, found.owner) == (lease.fencing_token, lease.owner)
        )

    def _unknown_commit(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"the connection was lost while the transaction of job {self.id} was committing")


def check_step_name(name: Any) -> None:
    """Refuse a name that the database would refuse, before the step runs."""
    if not isinstance(name, str):
        raise JobRejected(f"a step name must be text, not {type(name).__name__}: {name!r}")
    if not 1 <= len(name) <= STEP_NAME_LENGTH_MAX:
        raise JobRejected(
            f"a step name must have 1 to {STEP_NAME_LENGTH_MAX} characters, this one has {len(name)}: {name[:40]!r}"
        )
    if "\x00" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise JobRejected(f"a step name must not contain characters that PostgreSQL cannot store: {name!r}")
