"""The job as its task sees it. A task that wants it takes `job: Job` as its first parameter (`BlockingJob` in a thread).

Everything written through it is fenced: once the lease is lost, nothing of this attempt is written any more.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from faultline.core import events
from faultline.core.errors import ConfigError, FaultlineError, OutcomeUnknown, StaleLease
from faultline.core.model import JobState, Json
from faultline.store import jsontext, queue, views
from faultline.store.database import arun_on, run_on, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from uuid import UUID

    from faultline.core.host import Host
    from faultline.core.model import JobRecord, Settled
    from faultline.runtime.hold import Hold
    from faultline.store.database import AsyncDatabase, Database
    from faultline.store.queue import Statement

T = TypeVar("T")


class _Facts:
    """What is known of the running attempt, among it what an outside system needs to recognise a repeated or stale call."""

    def __init__(self, hold: Hold, host: Host, timeout_seconds: float | None) -> None:
        self._hold = hold
        lease = hold.lease
        self.id: UUID = lease.job_id
        self.task: str = lease.task
        self.attempt: int = lease.attempt
        self.max_attempts: int = lease.max_attempts
        #: Grows with every claim of this job. An outside system that remembers the greatest one seen can refuse older ones.
        self.fencing_token: int = lease.fencing_token
        #: The same in every attempt: the key given at the submission, or the job's id.
        self.idempotency_key: str = lease.idempotency_key
        #: When this attempt is to be over, by this machine's clock; None if it may take as long as it likes.
        self.deadline: datetime | None = (
            None if timeout_seconds is None else datetime.fromtimestamp(host.seconds() + timeout_seconds, UTC)
        )

    @property
    def lease_lost(self) -> bool:
        """True once this attempt can write nothing more. A long computation looks at it now and then, and stops."""
        return self._hold.lost is not None

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

    def _refuse_nesting(self, open_one: Transaction | None) -> None:
        if open_one is not None:
            raise ConfigError(
                f"job {self.id} is inside its transaction already; a second one would wait for the first for ever"
            )

    def _unknown_commit(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"the connection was lost while the transaction of job {self.id} was committing")


class Transaction:
    """The job's own transaction: what is written here and the completion commit together, or not at all."""

    def __init__(self, connection: Any) -> None:
        #: The psycopg connection, with the transaction open and the job's row locked.
        self.connection = connection
        #: `tx.execute(sql, params)`, as on the connection.
        self.execute = connection.execute
        self.cursor = connection.cursor
        self.result: str | None = None

    def refuse_if_broken(self) -> None:
        """PostgreSQL answers a commit after a failed statement with a silent rollback. What was written would be gone."""
        if self.connection.info.transaction_status == TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction(
                "a statement in the job's transaction failed, so nothing of it can be committed; let its error out"
            )

    def complete(self, result: Json = None) -> None:
        """Complete the job with this result when the transaction commits."""
        self.result = jsontext.encode(result, "result")


class Job(_Facts):
    """The job of an `async def` task."""

    def __init__(self, hold: Hold, database: AsyncDatabase, timeout_seconds: float | None = None) -> None:
        super().__init__(hold, database.host, timeout_seconds)
        self._database = database
        self._transaction: Transaction | None = None

    async def fence(self) -> None:
        """Raise `StaleLease` unless this attempt may still write. Says nothing about the next moment: see `transaction`."""
        try:
            await self._run(queue.fence(self._hold.lease))
        except StaleLease as error:
            raise await self._recorded(error) from error

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Json:
        """Do a part of the job once, whichever attempt comes to it first, and remember its result."""
        done, result = await self._run(queue.recall(self._hold.lease, name))
        if done:
            return result
        result = function(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        self._refuse_if_stale("step", await self._run(queue.step(self._hold.lease, name, result)))
        # As it will be remembered: a first run and a later one must not differ.
        return jsontext.decode(jsontext.encode(result, f"result of step {name}"))

    async def progress(self, progress: Json) -> None:
        """Show how far the job has come."""
        self._refuse_if_stale("progress", await self._run(queue.progress(self._hold.lease, progress)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Write to the same database under the lease's protection. Raises `StaleLease` and rolls back when it is lost."""
        self._refuse_nesting(self._transaction)
        async with self._database.connection() as connection:
            await connection.execute("begin")
            transaction = Transaction(connection)
            try:
                await arun_on(connection, queue.fence(self._hold.lease))
                self._hold.in_transaction = True
                self._transaction = transaction
                yield transaction
                transaction.refuse_if_broken()
                if transaction.result is not None:
                    completed = queue.complete([self._hold.lease], [transaction.result])
                    self._refuse_if_stale("complete", await arun_on(connection, completed))
            except BaseException as error:
                if not connection.closed:
                    await connection.execute("rollback")
                if isinstance(error, StaleLease) and not self.lease_lost:
                    raise await self._recorded(error) from error
                raise
            finally:
                self._transaction = None
                self._hold.in_transaction = False
            try:
                with wire(self._database.host.faults, "commit", connection):
                    await connection.execute("commit")
            except psycopg.OperationalError as error:
                await self._settle_unknown_commit(transaction, error)
            self._hold.settled = transaction.result is not None

    async def _settle_unknown_commit(self, transaction: Transaction, error: psycopg.OperationalError) -> None:
        """The answer to the commit was lost. If it was to complete the job, the ledger knows whether it did."""
        if transaction.result is None or not self._was_completed_by_us(await self._database.run(views.job(self.id))):
            raise self._unknown_commit() from error

    async def _run(self, statement: Statement[T]) -> T:
        if self._transaction is not None:
            # Another connection would wait for the lock that our own transaction holds.
            return await arun_on(self._transaction.connection, statement)
        return await self._database.run(statement)

    async def _recorded(self, error: StaleLease) -> StaleLease:
        """The refusal undid its own transaction, so its record is a second call: best effort."""
        try:
            await self._database.run(queue.record_refusal(self._hold.lease))
        except FaultlineError as failure:
            events.emit("refusal_not_recorded", job_id=self.id, error=str(failure))
        return self._lost("fence", error.reason or "lease_lost", error.current_token)


class BlockingJob(_Facts):
    """The job of a blocking task, which runs in a thread. The twin of `Job`."""

    def __init__(self, hold: Hold, database: Database, timeout_seconds: float | None = None) -> None:
        super().__init__(hold, database.host, timeout_seconds)
        self._database = database
        self._transaction: Transaction | None = None

    def fence(self) -> None:
        try:
            self._run(queue.fence(self._hold.lease))
        except StaleLease as error:
            raise self._recorded(error) from error

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Json:
        done, result = self._run(queue.recall(self._hold.lease, name))
        if done:
            return result
        result = function(*args, **kwargs)
        self._refuse_if_stale("step", self._run(queue.step(self._hold.lease, name, result)))
        return jsontext.decode(jsontext.encode(result, f"result of step {name}"))

    def progress(self, progress: Json) -> None:
        self._refuse_if_stale("progress", self._run(queue.progress(self._hold.lease, progress)))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._refuse_nesting(self._transaction)
        with self._database.connection() as connection:
            connection.execute("begin")
            transaction = Transaction(connection)
            try:
                run_on(connection, queue.fence(self._hold.lease))
                self._hold.in_transaction = True
                self._transaction = transaction
                yield transaction
                transaction.refuse_if_broken()
                if transaction.result is not None:
                    completed = queue.complete([self._hold.lease], [transaction.result])
                    self._refuse_if_stale("complete", run_on(connection, completed))
            except BaseException as error:
                if not connection.closed:
                    connection.execute("rollback")
                if isinstance(error, StaleLease) and not self.lease_lost:
                    raise self._recorded(error) from error
                raise
            finally:
                self._transaction = None
                self._hold.in_transaction = False
            try:
                with wire(self._database.host.faults, "commit", connection):
                    connection.execute("commit")
            except psycopg.OperationalError as error:
                if transaction.result is None or not self._was_completed_by_us(self._database.run(views.job(self.id))):
                    raise self._unknown_commit() from error
            self._hold.settled = transaction.result is not None

    def _run(self, statement: Statement[T]) -> T:
        if self._transaction is not None:
            return run_on(self._transaction.connection, statement)
        return self._database.run(statement)

    def _recorded(self, error: StaleLease) -> StaleLease:
        try:
            self._database.run(queue.record_refusal(self._hold.lease))
        except FaultlineError as failure:
            events.emit("refusal_not_recorded", job_id=self.id, error=str(failure))
        return self._lost("fence", error.reason or "lease_lost", error.current_token)
