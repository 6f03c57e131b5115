"""The running attempt of a job: what its async and its blocking side share. Nothing here waits or sends.

Several branches of a task (asyncio tasks, or threads that it started) may use one job at once. A transaction belongs to the
branch that opened it. It locks the job's row, so writes of other branches wait until it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from faultline.attempt.unawaited import refuse_unawaited
from faultline.core import events, forks
from faultline.core.bounds import STEP_NAME_LENGTH_MAX
from faultline.core.checks import check_readable
from faultline.core.errors import ConfigError, FaultlineError, JobRejected, OutcomeUnknown, StaleLease
from faultline.core.model import JobState
from faultline.history.calls import branch_around, reach
from faultline.store.external_sessions.translation import as_psycopg
from faultline.store.translation import is_about_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from faultline.attempt.lease_protocol import Held
    from faultline.attempt.streams import Stream
    from faultline.attempt.transaction import JobTransaction
    from faultline.core.host import Host
    from faultline.core.model import JobRecord, Unwritten
    from faultline.history.program import Program
    from faultline.store.pool.loans import Loan

#: As long as the server lets a transaction be idle. Then branches that wait for each other get an error.
TURN_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
#: A task may catch any number of errors and go on, so only the last ones are kept.
_SPARED_MAX = 20
#: The reason of an attempt that took longer than its task's timeout.
TIMED_OUT = "timed_out"

#: The transaction in which this branch runs or was started: a new asyncio task inherits it.
_inside: ContextVar[JobTransaction | None] = ContextVar("inside_transaction", default=None)
#: The steps in which this branch runs or was started: (id of the attempt, name).
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
        #: The number of this attempt, from 1. Released attempts, and those that the database failed, are not counted.
        self.attempt: int = lease.attempt
        #: Attempts before the job counts as failed, the first one included.
        self.max_attempts: int = lease.max_attempts
        #: Grows with every claim of this job. An external system that keeps the greatest one seen can refuse older ones.
        self.fencing_token: int = lease.fencing_token
        #: The same in every attempt: the key of the submission, or the job's id.
        self.idempotency_key: str = lease.idempotency_key
        #: The key of its group in the queue, such as a tenant's; None: it has none.
        self.group: str | None = lease.group
        #: When this attempt times out, by this machine's clock; None: never.
        self.deadline: datetime | None = (
            None if timeout_seconds is None else datetime.fromtimestamp(host.seconds() + timeout_seconds, UTC)
        )
        self._monotonic = host.monotonic
        #: If a call is not answered for so long, the database is to blame.
        self._patience_seconds = min(_PATIENCE_SECONDS, (timeout_seconds or inf) / 2)
        #: The calls of its flow. None: it made none, and has none on record.
        self.program: Program | None = None
        self._transaction: JobTransaction | None = None
        #: The loan of that transaction, or of one that is about to begin.
        self._loan: Loan | None = None
        #: Results of steps that have run and are not written yet, as JSON text.
        self._given: dict[str, str] = {}
        #: What it writes for readers to follow, by name.
        self._streams: dict[str, Stream] = {}
        #: Why the worker abandoned this attempt, whose code may still run.
        self._over: str | None = None
        self._over_lock = threading.Lock()

    @property
    def queue(self) -> str:
        """The queue from which it was claimed."""
        return self._hold.counts.queue

    @property
    def state(self) -> dict[str, Any]:
        """What the lifespans of this worker have opened, by name: see `Faultline.lifespan`. The same for all its jobs."""
        return self._hold.state

    @property
    def lease_lost(self) -> bool:
        """True once the lease is lost: this attempt can write nothing more. Long computations should check it and stop."""
        return self._over is not None or self._hold.lost is not None

    def abandon(self, reason: str) -> None:
        """The worker abandons this attempt while its code may still run: it can write nothing more. From any thread.

        Its open transaction is cut, so that the server rolls it back: otherwise it would keep the job's row locked and could
        still commit. Its connection counts as free: the code that has it may never return.
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
            # The sessions, locks and turns belong to the parent.
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
        """Judge an error of an engine call outside the job's transaction, made `since`."""
        same = as_psycopg(error)
        if same is not None or isinstance(error, FaultlineError):
            spared = not is_about_data(same or error)
        else:
            # The task's timeout. It counts against the database only if the call was unanswered for long.
            unanswered = self._monotonic() - since
            spared = isinstance(error, asyncio.CancelledError) and unanswered > self._patience_seconds
        if spared:
            self._spare(error)

    def _spare(self, error: BaseException) -> None:
        """Remember an error that the database caused: it does not use up an attempt."""
        self._hold.failed_by = [*(self._hold.failed_by or ()), error][-_SPARED_MAX:]

    # Streams

    @property
    def is_streaming(self) -> bool:
        return bool(self._streams) and not self._hold.completed and not self.lease_lost

    def _is_repeating(self) -> bool | Callable[[], bool]:
        """Whether the program only repeats recorded calls: what it wrote to streams there is kept.

        Before the first call nobody has read what is recorded: then a function that says it afterwards.
        """
        program = self.program
        if program is None:
            return False
        if program.is_known:
            branch = branch_around(program)
            return branch is not None and program.written.has(branch)
        if not self._hold.lease.in_flow or self.fencing_token <= 1:
            return False
        return partial(program.written.is_behind, program.root, program.root.counter)

    def _reach(self) -> str:
        """Where the program writes to a stream, as the database compares it with what is recorded."""
        return json.dumps(reach(self.program), separators=(",", ":"))

    def _stream_later(self) -> None:
        for stream in list(self._streams.values()):
            if stream.has_more:
                stream.later()

    def _stream_failed(self, error: Exception, *, for_good: bool) -> None:
        events.emit("stream_not_written", job_id=self.id, token=self.fencing_token, error=str(error))
        for stream in list(self._streams.values()):
            if for_good:
                stream.failed(error)
            elif stream.has_more:
                stream.later()

    # Branches

    def _own_transaction(self, branch: Callable[[], object]) -> JobTransaction | None:
        """The open transaction if it is this branch's own. Refuses a branch that would deadlock by waiting for it."""
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

    def _is_done_elsewhere(self, step: str, own: JobTransaction | None) -> bool:
        """Whether the step ran in another branch's open transaction: wait for its end to know whether it is done."""
        transaction = self._transaction
        return transaction is not None and transaction is not own and step in transaction.steps

    @contextlib.contextmanager
    def _opened(self, transaction: JobTransaction) -> Iterator[None]:
        """From the fence to the end of the commit."""
        with self._over_lock:
            self._refuse_if_over()
            self._transaction = transaction
        self._hold.in_transaction = True
        token = _inside.set(transaction)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # left in another context than entered
                _inside.reset(token)
            # Under the lock: a connection that is back in its pool must not be cut.
            with self._over_lock:
                self._transaction = None
            self._hold.in_transaction = False

    @contextlib.contextmanager
    def _around(self, step: str) -> Iterator[None]:
        """A step inside itself would wait for itself."""
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

    def _refuse_if_unawaited(self) -> None:
        if self._hold.unawaited:
            refuse_unawaited(self._hold.unawaited, f", so it did not run; job {self.id} is not completed")

    def _refuse_if_stale(self, verb: str, unwritten: Unwritten) -> None:
        if unwritten.stale:
            refusal = unwritten.stale[0]
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


def check_step_name(name: Any, what: str = "a step name") -> None:
    """Refuse a name that the database would refuse, before the step runs."""
    if not isinstance(name, str):
        raise JobRejected(f"{what} must be text, not {type(name).__name__}: {name!r:.80}")
    if not 1 <= len(name) <= STEP_NAME_LENGTH_MAX:
        raise JobRejected(
            f"{what} must have 1 to {STEP_NAME_LENGTH_MAX} characters, this one has {len(name)}: {name[:40]!r}"
        )
    check_readable(what, name)
