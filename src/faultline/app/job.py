"""The job, as its task sees it: a task that needs it takes `job: Job` as its first parameter (`BlockingJob` in a thread).

Everything written through it is fenced: once the lease is lost, this attempt can write nothing more.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

import psycopg

from faultline import values
from faultline.attempt import attempt
from faultline.attempt.async_or_blocking import aacquired, acalled, apaused
from faultline.attempt.async_transaction import Transaction
from faultline.attempt.attempt import check_step_name
from faultline.attempt.blocks import ablock
from faultline.attempt.error_attribution import Blame, words
from faultline.attempt.storable_text import step_result, step_text
from faultline.attempt.streams import COLLECT_SECONDS, FLUSH_AGAIN_SECONDS, FLUSH_SECONDS, Stream, asoon, check_stream_name
from faultline.attempt.transaction import JobTransaction, JoinedTransaction
from faultline.attempt.unawaited import must_await
from faultline.core import events
from faultline.core.errors import ConfigError, DatabaseUnavailable, FaultlineError, FenceBroken, StaleLease, StatementTimeout
from faultline.flow.job_calls import Flows
from faultline.history.ending import CodeChanged
from faultline.store import fencing, jsontext, verbs
from faultline.store.async_database import arun_on
from faultline.store.connection.state import wire
from faultline.store.external_sessions import AsyncJoined, ajoined
from faultline.store.external_sessions.translation import as_psycopg
from faultline.store.pool.loans import Loan, beside
from faultline.store.reads import views
from faultline.store.translation import connection_was_lost, is_about_data, is_about_the_moment, translated
from faultline.store.verbs import graphs, streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from faultline.attempt.lease_protocol import Held
    from faultline.attempt.streams import Batch
    from faultline.core.model import Json, Unwritten
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.external_sessions import Session
    from faultline.store.statement import Statement
    from faultline.store.verbs.graphs import Upstream

T = TypeVar("T")
#: How often a transaction is opened before its job gives up: on a pooled connection that had died, and on new ones.
_OPENS_MAX = 3


class Job(Flows):
    """The job of an `async def` task."""

    def __init__(self, hold: Held, database: AsyncDatabase, timeout_seconds: float | None = None) -> None:
        super().__init__(hold, database.host, timeout_seconds)
        self._database = database
        #: Held by the branch that writes: a transaction locks the job's row, and another connection would wait for it.
        self._turn = asyncio.Lock()
        #: Each is held while the function of its step runs.
        self._steps: dict[str, asyncio.Lock] = {}

    @must_await
    async def fence(self) -> None:
        """Raise `StaleLease` if the lease is lost. It may be lost right afterwards: to guard writes, use `transaction`."""
        try:
            await self._write(verbs.fence(self._hold.lease))
        except StaleLease as error:
            raise await self._recorded(error) from error

    @overload
    async def step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...
    @must_await
    async def step(self, name: str, function: Callable[..., Awaitable[T] | T], *args: Any, **kwargs: Any) -> T:
        """Run a part of the job once and store its result; later attempts get the stored result.

        Called in several branches at once, it runs in one of them and all get its result; if it fails there, the next branch
        runs it. Inside a transaction, the result is stored when the transaction commits, and rolled back with it.

        :param name: Of this part, unique within the job. 1 to 200 characters.
        :param function: What to run. Its result is stored as JSON, and read by its annotation.
        :param args: Positional arguments of the function.
        :param kwargs: Named arguments of the function.
        """
        check_step_name(name)
        own = self._own_transaction(asyncio.current_task)
        returns = values.read_as(function)
        result: T
        with self._around(name):
            running = await self._its_turn(name, own)
            try:
                text = self._given.get(name)
                if text is None:
                    done, result = await self._run(verbs.recall(self._hold.lease, name))
                    if done:
                        return step_result(name, result, returns)
                    if own is not None:
                        own.steps.add(name)
                    limit = (await self._database.facts()).result_bytes_max
                    text = step_text(name, await acalled(function, args, kwargs), returns, limit)
                    if own is None:
                        self._given[name] = text
            finally:
                running.release()
            # As it is stored: a first run and a later one must not differ.
            result = values.as_stored(jsontext.decode(text))
            self._refuse_if_stale("step", await self._write(verbs.step(self._hold.lease, name, result)))
            self._given.pop(name, None)
        return step_result(name, result, returns)

    @must_await
    async def progress(self, progress: Json) -> None:
        """Store the progress of the job, for people to see.

        :param progress: Anything that JSON can hold, for example `{"done": 3, "of": 10}`.
        """
        self._refuse_if_stale("progress", await self._write(verbs.progress(self._hold.lease, progress)))

    @must_await
    async def upstream(self) -> dict[str, Upstream]:
        """What became of the jobs that this job of a graph came after, by their names: state, result and error.

        The first attempt that asks decides: later ones see the same states.
        """
        return {one.name: one for one in await self._write(graphs.upstream(self._hold.lease))}

    def stream(self, name: str) -> Stream:
        """A stream of this job, for readers to follow while it runs: `job.stream("tokens").write(text)`.

        :param name: Of the stream, unique within the job. 1 to 200 characters.
        """
        check_stream_name(name)
        if name not in self._streams:
            later = asoon(COLLECT_SECONDS, self._flush_in_time, self._is_over)
            self._streams[name] = Stream(self.id, name, later, self._is_repeating, self._reach)
        return self._streams[name]

    async def _flush_in_time(self) -> None:
        """Write what waits in the streams, unless another branch writes just now: then a little later."""
        if self._turn.locked():
            self._stream_later()
        else:
            await self._flush_once()

    async def flush_streams(self) -> None:
        """Write what waits in the streams, now: at the end of an attempt there is no later, and the next one does not
        write again what stands before a recorded call.
        """
        while not await self._flush_once():
            await apaused(FLUSH_AGAIN_SECONDS, self._is_over)

    async def _flush_once(self) -> bool:
        """Whether no second try can write more."""
        if not await aacquired(self._turn, FLUSH_SECONDS, self._is_over):
            if not self._is_over():
                self._stream_failed(self._no_turn(), for_good=False)
            return True
        try:
            return await self._flush_in_turn()
        finally:
            self._turn.release()

    async def _flush_in_turn(self) -> bool:
        try:
            await self._write_streams()
        except (FaultlineError, psycopg.Error) as error:
            for_good = isinstance(error, StaleLease) or is_about_data(error)
            if not self._is_over():
                self._stream_failed(error, for_good=for_good)
            return for_good or self._is_over()
        return True

    async def _write_streams(self) -> None:
        await self._judge_streams()
        for stream in list(self._streams.values()):
            for batch in stream.batches():
                self._refuse_if_stale("stream", await self._run(self._streaming(stream, batch)))
                stream.written(batch)

    def _streaming(self, stream: Stream, batch: Batch) -> Statement[Unwritten]:
        return streams.stream(self._hold.lease, stream.name, batch.first_position, batch.items, batch.reach)

    async def _judge_streams(self) -> None:
        """What was written before the first call: it needs to be known what is recorded."""
        unjudged = [stream for stream in self._streams.values() if stream.is_unjudged]
        if unjudged and self.program is not None:
            if not self.program.is_known:
                recorded = await self._run(verbs.history(self.id))
                self.program.know(recorded)
            for stream in unjudged:
                stream.judge()

    @overload
    def transaction(self, session: None = None) -> AbstractAsyncContextManager[Transaction]: ...
    @overload
    def transaction(self, session: Session) -> AbstractAsyncContextManager[JoinedTransaction]: ...
    @ablock
    async def transaction(self, session: Session | None = None) -> AsyncIterator[Any]:
        """Write to the same database, fenced by the lease. Raises `StaleLease` and rolls back if the lease is lost.

        It belongs to the branch that opens it. Another branch's transaction, step or progress waits until it has ended.

        :param session: Your own session or connection of SQLAlchemy, or Django's connection: what is written through it is
            committed, or refused, together with the completion. Default: a psycopg connection of the worker's.
        """
        self._refuse_nesting(asyncio.current_task)
        await self._take_turn()
        transaction: Transaction | JoinedTransaction | None = None
        asked_at = self._monotonic()
        try:
            if self._streams:
                await self._flush_in_turn()
            self._loan = loan = Loan()
            async with AsyncExitStack() as lent:
                transaction = await self._open(lent, session, loan)
                try:
                    with self._opened(transaction):
                        yield transaction
                        transaction.close()
                        await self._finish(transaction)
                except BaseException as error:
                    await self._undo(transaction, error)
                    raise
                finally:
                    await self._judge(transaction)
                    if transaction.altered:
                        await transaction.raw.close()
        except BaseException as error:
            if transaction is None and not isinstance(error, ConfigError):
                self._blame(error, asked_at)
            raise
        finally:
            self._loan = None
            self._turn.release()

    async def _open(self, lent: AsyncExitStack, session: Session | None, loan: Loan) -> Transaction | JoinedTransaction:
        """Begin and fence the transaction. If the connection turns out to be dead, do it again on another: nothing of the
        task's was sent. So a job is not run again because the server was restarted while it did something else.
        """
        for losses in range(1, _OPENS_MAX + 1):
            async with AsyncExitStack() as tried:
                given = self._database.connection(loan) if session is None else ajoined(session)
                connection: Any = await tried.enter_async_context(given)
                try:
                    transaction = await self._begin(connection, loan)
                except DatabaseUnavailable as error:
                    may_begin_again = not isinstance(connection, AsyncJoined) or connection.may_begin_again
                    was_lost = connection_was_lost(as_psycopg(error.__cause__ or error))
                    if losses == _OPENS_MAX or not may_begin_again or not was_lost:
                        raise
                else:
                    lent.push_async_exit(tried.pop_all())
                    return transaction
            if session is None:
                await self._database.drop_idle(but_the_living=losses == 1)
        raise AssertionError("the last try either returns or raises")

    async def _begin(
        self, connection: psycopg.AsyncConnection[Any] | AsyncJoined, loan: Loan
    ) -> Transaction | JoinedTransaction:
        with translated(self._database.dsn):
            await connection.execute("begin")
        try:
            is_theirs = isinstance(connection, AsyncJoined)
            number = await arun_on(connection, fencing.fence(self._hold.lease, limits_idling=is_theirs))
        except BaseException as error:
            await self._roll_back(connection)
            if isinstance(error, StaleLease) and not self.lease_lost:
                raise await self._recorded(error) from error
            raise
        kind = JoinedTransaction if is_theirs else Transaction
        return kind(
            self.id,
            connection,
            loan,
            number=number,
            result_bytes_max=(await self._database.facts()).result_bytes_max,
            opener=asyncio.current_task(),
            monotonic=self._monotonic,
        )

    async def _finish(self, transaction: JobTransaction) -> None:
        connection = transaction.raw
        transaction.refuse_if_broken()
        self._refuse_if_over()
        if transaction.is_theirs:
            await connection.flush()
        renewed_at: float | None = None
        if transaction.result is None:
            await self._send(transaction, fencing.check(transaction.number))
            if self._hold.busy_at is not None:
                # A long transaction blocked the renewals, so the lease could be reaped when it ends. Renew it here.
                renewed_at = self._monotonic()
                self._refuse_if_stale("renew", await self._send(transaction, verbs.renew([self._hold.lease])))
        else:
            self._refuse_if_unawaited()
            await self._judge_streams()
            for stream in list(self._streams.values()):
                # The last moment: afterwards there is no lease.
                for batch in stream.batches():
                    self._refuse_if_stale("stream", await self._send(transaction, self._streaming(stream, batch)))
                    stream.written(batch)
            await self._refuse_if_changed(transaction)
            abandoned = [] if self.program is None else self.program.abandoned()
            if abandoned:
                self._refuse_if_stale("record", await self._send(transaction, verbs.record(self._hold.lease, abandoned)))
            completed = fencing.complete(self._hold.lease, transaction.result, transaction.number)
            self._refuse_if_stale("complete", await self._send(transaction, completed))
        transaction.ends = True
        try:
            with wire(self._database.host.faults, "commit", connection):
                await connection.execute("commit")
        except Exception as error:
            same = as_psycopg(error)
            # A trigger of the task's may run now, and refuse. But no limit that the task has set is for the commit.
            transaction.met(error, ours=same is not None and is_about_the_moment(same))
            if not connection_was_lost(same):
                await self._look_up_commit(transaction)
                raise
            await self._resolve_unknown_commit(transaction, error)
        self._hold.completed = transaction.result is not None
        if renewed_at is not None:
            self._hold.renewed(renewed_at)

    async def _refuse_if_changed(self, transaction: JobTransaction) -> None:
        """A program that did not come to all that is recorded does not complete its job here either."""
        if self.program is None:
            return
        if not self.program.is_known:
            recorded = await self._send(transaction, verbs.history(self.id))
            self.program.know(recorded)
        verdict = self.program.verdict(None)
        if verdict is not None:
            raise self.program.end(verdict) if isinstance(verdict, CodeChanged) else verdict

    async def _resolve_unknown_commit(self, transaction: JobTransaction, error: Exception) -> None:
        """The answer to the commit was lost. If it completed the job, the ledger shows it."""
        if transaction.result is None or not self._was_completed_by_us(await self._database.run(views.job(self.id))):
            raise self._unknown_commit() from error
        self._hold.completed = True
        if transaction.is_theirs:
            # To the session its commit has failed: it would refuse all that the task does next.
            await self._roll_back(transaction.raw)

    async def _look_up_commit(self, transaction: JobTransaction) -> None:
        """A hook of the task's session may have raised after the commit: the job is completed, though this looks failed."""
        if transaction.is_theirs and transaction.result is not None:
            with suppress(FaultlineError):
                self._hold.completed = self._was_completed_by_us(await self._database.run(views.job(self.id)))

    async def _undo(self, transaction: JobTransaction, error: BaseException) -> None:
        """Roll back. If the task ended the transaction itself, raise that instead: it is worse than any other error."""
        transaction.close()
        transaction.drop_unawaited(error)
        transaction.let_out(error)
        gone = transaction.is_gone() and not transaction.ends
        await self._roll_back(transaction.raw)
        if gone and not isinstance(error, FenceBroken):
            raise transaction.broken() from error

    async def _roll_back(self, connection: psycopg.AsyncConnection[Any] | AsyncJoined) -> None:
        try:
            if isinstance(connection, AsyncJoined) or not connection.closed:
                await connection.execute("rollback")
        except Exception as error:
            if as_psycopg(error) is None:
                raise
            await connection.close()

    async def _judge(self, transaction: JobTransaction) -> None:
        """Do not count the database's errors against the job. If the session was cut because the attempt was over, the task
        was too slow.
        """
        for mishap in transaction.mishaps if self._over is None else ():
            spared = mishap.blame is Blame.DATABASE
            if mishap.blame is Blame.ASK:
                spared = await self._was_cancelled(transaction, mishap.error)
            elif mishap.blame is Blame.ASK_FOR_RIGHTS:
                spared = await self._lacks_rights(transaction)
            if spared:
                self._spare(mishap.raised)

    async def _was_cancelled(self, transaction: JobTransaction, error: BaseException) -> bool:
        """Whether somebody cancelled the statement: then the message is that of a cancelled one. Otherwise it exceeded a
        timeout of the task or its role. If the server cannot be asked, the job is spared.
        """
        if not transaction.is_gone() and not transaction.is_theirs:
            return True
        try:
            # Not in a session of the task's, which may be in use again.
            async with self._database.connection() if transaction.is_theirs else nullcontext(transaction.raw) as asked:
                await arun_on(asked, fencing.cancel_itself())
        except StatementTimeout as cancelled:
            return words(cancelled.__cause__) == words(error)
        except (FaultlineError, psycopg.Error):
            pass
        return True

    async def _lacks_rights(self, transaction: JobTransaction) -> bool:
        """Whether the login itself lacks the right to end jobs. The task's own role ends with its transaction."""
        if not transaction.is_gone():
            return True
        try:
            return not await arun_on(transaction.raw, fencing.may_end_jobs())
        except (FaultlineError, psycopg.Error):
            return True

    # One statement

    async def _send(self, transaction: JobTransaction, statement: Statement[T]) -> T:
        """A statement of the engine in the job's transaction."""
        try:
            return await arun_on(transaction.raw, statement)
        except (FaultlineError, psycopg.Error) as error:
            transaction.met(error, ours=True)
            raise

    async def _write(self, statement: Statement[T]) -> T:
        """Write in this branch's transaction, or alone when no other branch has one open."""
        if self._own_transaction(asyncio.current_task) is not None:
            return await self._run(statement)
        await self._take_turn()
        try:
            if self._streams:
                # First: a later attempt keeps of its streams what was written before the last record.
                await self._write_streams()
            return await self._run(statement)
        finally:
            self._turn.release()

    async def _run(self, statement: Statement[T]) -> T:
        own = self._own_transaction(asyncio.current_task)
        if own is not None:
            own.refuse_if_over()
            return await self._send(own, statement)
        asked_at = self._monotonic()
        try:
            with beside(self._loan):
                return await self._database.run(statement)
        except BaseException as error:
            self._blame(error, asked_at)
            raise

    async def _recorded(self, error: StaleLease) -> StaleLease:
        """The refusal rolled back its own transaction, so recording it is a second call: best effort."""
        try:
            with beside(self._loan):
                await self._database.run(verbs.record_refusal(self._hold.lease))
        except FaultlineError as failure:
            events.emit("refusal_not_recorded", job_id=self.id, error=str(failure))
        return self._lost("fence", error.reason or "lease_lost", error.current_token)

    # Turns

    async def _take_turn(self) -> None:
        if not await aacquired(self._turn, attempt.TURN_SECONDS, self._is_over):
            raise self._no_turn()

    async def _its_turn(self, step: str, own: JobTransaction | None) -> asyncio.Lock:
        """Wait until no other branch runs this step, or has run it in a transaction that is still open."""
        running = self._steps.setdefault(step, asyncio.Lock())
        while True:
            # No limit: a step may take as long as its task.
            if not await aacquired(running, None, self._is_over):
                raise self._no_turn()
            if not self._is_done_elsewhere(step, own):
                return running
            running.release()
            await self._take_turn()
            self._turn.release()
