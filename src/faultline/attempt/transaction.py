"""The job's transaction: your writes and the completion of the job commit together, or not at all.

Only the worker may end it. A commit or rollback from inside would unlock the job's row, and later writes would not be
fenced. So the task gets a guarded connection and cursors: they refuse calls that end a transaction, and send nothing once it
is gone. SQL text can hide a commit; the database notices that at the end (`same_transaction`).
"""

from __future__ import annotations

import inspect
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from faultline.attempt.blocks import refuse_async_with, refuse_with
from faultline.attempt.error_attribution import ABORTED, Mishap, of_session
from faultline.attempt.storable_text import result_text
from faultline.attempt.unawaited import Pending, refuse_unawaited, shortened
from faultline.core.errors import ConfigError, FenceBroken
from faultline.store.external_sessions import AsyncJoined, Joined
from faultline.store.external_sessions.translation import as_psycopg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from uuid import UUID

    from faultline.core.model import Json
    from faultline.store.pool.loans import Loan

_ENDS_TRANSACTION = re.compile(
    r"(?:begin|start\s+transaction|commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)
_BLANK, _COMMENT_MARK = re.compile(r"(?:[\s;]|--[^\n]*)*+"), re.compile(r"/\*|\*/")
_REFUSED = frozenset(
    {
        "commit", "rollback", "close", "autocommit", "set_autocommit", "isolation_level", "set_isolation_level",
        "read_only", "set_read_only", "deferrable", "set_deferrable", "tpc_begin", "tpc_prepare", "tpc_commit",
        "tpc_rollback", "__enter__", "__exit__", "__aenter__", "__aexit__",
    }
)  # fmt: skip
_MISHAPS_MAX = 20
_FAILED = (TransactionStatus.INERROR, TransactionStatus.UNKNOWN)
_SENDS = frozenset({"execute", "executemany", "stream", "copy", "cursor", "transaction", "pipeline"})


class JobTransaction:
    """What every transaction of a job has, in a session of the worker's or of the task's."""

    #: What its task writes through.
    connection: Any

    def __init__(
        self,
        job_id: UUID,
        connection: Any,
        loan: Loan,
        *,
        number: int,
        result_bytes_max: int,
        opener: object,
        monotonic: Callable[[], float],
    ) -> None:
        self._job_id = job_id
        self._result_bytes_max = result_bytes_max
        self.monotonic = monotonic
        self._began_at = monotonic()
        self._open = True
        #: The unguarded connection, for the engine; or what the task's own session is to it.
        self.raw = connection
        #: It runs in a session of the task's.
        self.is_theirs = isinstance(connection, Joined | AsyncJoined)
        #: Calling it in ends the transaction from outside.
        self.loan = loan
        #: The server's number of the fenced transaction.
        self.number = number
        self.opener = opener
        #: The steps that ran inside: they are done when it commits.
        self.steps: set[str] = set()
        #: Its commit was sent.
        self.ends = False
        #: The task changed the connection itself, so it must not be used again.
        self.altered = False
        #: Statements that were made and not yet awaited.
        self.unawaited: set[Pending[Any]] = set()
        self.result: str | None = None
        #: The last errors that its session raised.
        self.mishaps: list[Mishap] = []
        self._notice(connection)

    # Not shown to type checkers: they refuse what a transaction does not have.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in ("commit", "rollback"):
                self.refuse_end(f"tx.{name}()")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def complete(self, result: Json = None) -> None:
        """Complete the job when the transaction commits.

        :param result: The result of the job: anything that JSON can hold.
        """
        self.refuse_if_unawaited()
        self.result = result_text(result, "result", self._result_bytes_max)

    def close(self) -> None:
        """From here on only the engine uses it."""
        self._open = False
        vars(self.raw).pop("wait", None)

    def refuse_if_over(self) -> None:
        if not self._open:
            raise ConfigError(
                f"the job's transaction has ended; nothing more can be written through it (job {self._job_id})"
            )
        self.refuse_if_gone()

    def refuse_if_gone(self) -> None:
        if self.is_gone():
            raise self.broken()

    def is_gone(self) -> bool:
        """The task ended it, so nothing is fenced any more. Known without asking the server."""
        return bool(self.raw.info.transaction_status == TransactionStatus.IDLE)

    def broken(self) -> FenceBroken:
        return FenceBroken(
            f"the task ended the job's transaction itself (job {self._job_id}): what it committed is not undone, and the job"
            " is not completed; let the end of the `with` block end the transaction"
        )

    def refuse_if_unawaited(self) -> None:
        refuse_unawaited(
            self.unawaited, f", so it did not run; nothing of the transaction is committed (job {self._job_id})"
        )

    def drop_unawaited(self, error: BaseException) -> None:
        """The block raised, and a statement that was never awaited may be why."""
        try:
            self.refuse_if_unawaited()
        except ConfigError as forgotten:
            if str(forgotten) != str(error):
                error.add_note(str(forgotten))

    def refuse_if_broken(self) -> None:
        """After a failed statement, PostgreSQL silently turns a commit into a rollback, and the writes would be lost."""
        self.refuse_if_gone()
        self.refuse_if_unawaited()
        if self.is_theirs and self.raw.was_rolled_back and not self.mishaps:
            raise ConfigError(
                f"{self.raw.what} was rolled back inside the transaction of job {self._job_id}: its writes are gone, and the"
                " job is not completed. To undo a part, use a savepoint; to undo all, let an exception out of the block"
            )
        if self.raw.info.transaction_status == TransactionStatus.INERROR:
            broken = psycopg.errors.InFailedSqlTransaction(
                "a statement in the job's transaction failed, so it cannot be committed; let the error propagate"
            )
            self.met(broken)
            raise broken

    # What went wrong in it

    def _notice(self, connection: Any) -> None:
        """Wrap `wait`, through which every answer of the server comes, also for fetches and copies."""
        wait = getattr(connection, "wait", None)
        if wait is None:  # simulated
            return

        async def awaited(*args: Any, **words: Any) -> Any:
            since = self.monotonic()
            try:
                return await wait(*args, **words)
            except psycopg.Error as error:
                self.met(error, since)
                raise

        def waited(*args: Any, **words: Any) -> Any:
            since = self.monotonic()
            try:
                return wait(*args, **words)
            except psycopg.Error as error:
                self.met(error, since)
                raise

        connection.wait = awaited if inspect.iscoroutinefunction(wait) else waited

    def met(self, error: BaseException, since: float | None = None, *, ours: bool = False) -> None:
        """Note an error of its session, of a statement that was sent at `since` or earlier."""
        if any(mishap.raised is error for mishap in self.mishaps):
            return
        same = as_psycopg(error) or error
        if getattr(same, "sqlstate", None) == ABORTED:
            # It says only that an earlier statement failed. That one is the cause, even if the task caught it.
            error.__cause__ = self.mishaps[-1].raised if self.mishaps else error.__cause__
            return
        seconds = self.monotonic() - (self._began_at if since is None else since)
        self.mishaps = [*self.mishaps, Mishap(same, seconds, ours, error, self.monotonic() - self._began_at)][-_MISHAPS_MAX:]

    def let_out(self, error: BaseException) -> None:
        """Note errors that the guards did not see, as of a copy. They are of this session if it has failed."""
        # asyncpg does not say whether a statement has failed.
        if self.is_theirs or self.raw.closed or self.raw.info.transaction_status in _FAILED:
            for found in of_session(error):
                self.met(found)

    def refuse_end(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{what} would end or change the job's transaction (job {self._job_id}), and later writes would not be fenced;"
            " the end of its `with` block commits it, an exception rolls it back; savepoints are allowed"
        )


class JoinedTransaction(JobTransaction):
    """The transaction of `job.transaction(session)`: write through your session, which is its `connection`.

    It commits at the end of the `with` block, and rolls back when that raises. To end it inside the block is refused.
    """

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        #: The session or connection that was given.
        self.connection: Any = self.raw.given


def guarded_connection(transaction: JobTransaction) -> Any:
    """Its connection, as the task gets it."""
    return _Connection(transaction, transaction.raw)


class _Guarded:
    """Wraps a connection or cursor of the transaction and checks each call."""

    _transaction: JobTransaction
    _raw: Any
    #: What programs call it.
    _called: ClassVar[str]

    def __init__(self, transaction: JobTransaction, raw: Any) -> None:
        object.__setattr__(self, "_transaction", transaction)
        object.__setattr__(self, "_raw", raw)

    # Libraries check the type of what they get.
    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        return type(self._raw)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._raw, name)
        if name in _SENDS:
            return self._looked_at(name, value)
        return value

    def _looked_at(self, name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        transaction = self._transaction

        def sent(*args: Any, **words: Any) -> Any:
            transaction.refuse_if_over()
            query = args[0] if args else words.get("query", words.get("statement"))
            text = query.decode("utf-8", "replace") if isinstance(query, bytes) else query
            if isinstance(text, str) and _ENDS_TRANSACTION.match(text, _start_of(text)):
                transaction.refuse_end(text.strip()[:40])
            if inspect.iscoroutinefunction(send):
                call = f"{self._called}.{name}"
                return Pending(_sent(transaction, send, args, words), transaction.unawaited, call, shortened(text))
            sent_at = transaction.monotonic()
            try:
                given = send(*args, **words)
            except psycopg.Error as error:
                transaction.met(error, sent_at)
                raise
            return _copying(transaction, given) if name == "copy" else _guarded(transaction, given)

        return sent


class _Connection(_Guarded):
    _called = "tx"

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED and name not in ("autocommit", "isolation_level", "read_only", "deferrable"):
            self._transaction.refuse_end(f"connection.{name}()")
        if name in ("adapters", "add_notice_handler", "add_notify_handler"):
            self._transaction.altered = True
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _REFUSED:
            self._transaction.refuse_end(f"connection.{name}")
        self._transaction.altered = True
        setattr(self._raw, name, value)

    def __enter__(self) -> Any:
        self._transaction.refuse_end("`with connection`")

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Any:
        self._transaction.refuse_end("`async with connection`")

    async def __aexit__(self, *_: object) -> None: ...


class _Cursor(_Guarded):
    _called = "cursor"

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._raw, name, value)

    def __enter__(self) -> Any:
        if not hasattr(self._raw, "__enter__"):
            refuse_with("tx.cursor()")
        self._raw.__enter__()
        return self

    def __exit__(self, *why: object) -> Any:
        return self._raw.__exit__(*why)

    async def __aenter__(self) -> Any:
        if not hasattr(self._raw, "__aenter__"):
            refuse_async_with("tx.cursor()")
        await self._raw.__aenter__()
        return self

    async def __aexit__(self, *why: object) -> Any:
        return await self._raw.__aexit__(*why)

    def __iter__(self) -> Any:
        return iter(self._raw)

    def __next__(self) -> Any:
        return next(self._raw)

    def __aiter__(self) -> Any:
        return aiter(self._raw)

    async def __anext__(self) -> Any:
        return await anext(self._raw)


def _start_of(sql: str) -> int:
    """Where its first word begins: after spaces and comments, which may be nested."""
    at, depth = _end_of_blank(sql, 0), 0
    while sql.startswith("/*", at):
        for mark in _COMMENT_MARK.finditer(sql, at):
            depth += 1 if mark[0] == "/*" else -1
            if depth == 0:
                at = _end_of_blank(sql, mark.end())
                break
        else:
            return len(sql)
    return at


def _end_of_blank(sql: str, start: int) -> int:
    blank = _BLANK.match(sql, start)
    return start if blank is None else blank.end()


def _guarded(transaction: JobTransaction, given: Any) -> Any:
    """Guard the result of a call if it is a cursor. Anything else is harmless."""
    return _Cursor(transaction, given) if hasattr(given, "fetchall") else given


def _copying(transaction: JobTransaction, given: Any) -> Any:
    """A copy is entered as what psycopg makes of it. A row of it that is written without `await` is not written."""
    return _rows_awaited(transaction, given) if hasattr(given, "__aenter__") else given


@asynccontextmanager
async def _rows_awaited(transaction: JobTransaction, given: Any) -> AsyncIterator[Any]:
    async with given as copy:
        for name in ("write", "write_row"):
            setattr(copy, name, _listed(transaction, f"copy.{name}", getattr(copy, name)))
        yield copy


def _listed(transaction: JobTransaction, call: str, send: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **words: Pending(send(*args, **words), transaction.unawaited, call)


async def _sent(transaction: JobTransaction, send: Callable[..., Any], args: Any, words: Any) -> Any:
    sent_at = transaction.monotonic()
    try:
        return _guarded(transaction, await send(*args, **words))
    except psycopg.Error as error:
        transaction.met(error, sent_at)
        raise
