"""The job's transaction: your writes and the completion of the job commit together, or not at all.

Only the worker may end it. A commit or rollback from inside would unlock the job's row, and later writes would not be
fenced. So the task gets a guarded connection and cursors: they refuse calls that end a transaction, and send nothing once it
is gone. SQL text can hide a commit; the database notices that at the end (`same_transaction`).
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from faultline.app.blame import ABORTED, Mishap, of_session
from faultline.app.texts import result_text
from faultline.core.errors import ConfigError, FenceBroken
from faultline.store.joining import AsyncJoined, Joined
from faultline.store.joining.faults import as_psycopg

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from faultline.core.model import Json
    from faultline.store.lending import Loan

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


class Transaction:
    """The transaction of `job.transaction()`. It belongs to the asyncio task or thread that opened it.

    It commits at the end of the `with` block, and rolls back when that raises. To end it inside the block is refused.
    """

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
        #: The psycopg connection, with the transaction open and the job's row locked. It cannot end the transaction. In
        #: `job.transaction(session)` that session.
        self.connection: Any = connection.given if self.is_theirs else _Connection(self, connection)
        self.result: str | None = None
        #: The last errors that its session raised.
        self.mishaps: list[Mishap] = []
        self._notice(connection)

    def execute(self, query: Any, params: Any = None, **words: Any) -> Any:
        """Run a statement, as `connection.execute` of psycopg does. In an async task it is awaited.

        :param query: SQL.
        :param params: The values of its parameters.
        :param words: Further arguments of psycopg: `prepare`, `binary`.
        """
        return self.connection.execute(query, params, **words)

    def cursor(self, *args: Any, **words: Any) -> Any:
        """A cursor, as `connection.cursor` of psycopg makes it.

        :param args: As for psycopg.
        :param words: As for psycopg.
        """
        return self.connection.cursor(*args, **words)

    def complete(self, result: Json = None) -> None:
        """Complete the job when the transaction commits.

        :param result: The result of the job: anything that JSON can hold.
        """
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

    def refuse_if_broken(self) -> None:
        """After a failed statement, PostgreSQL silently turns a commit into a rollback, and the writes would be lost."""
        self.refuse_if_gone()
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
        self.mishaps = [*self.mishaps, Mishap(same, seconds, ours, error)][-_MISHAPS_MAX:]

    def let_out(self, error: BaseException) -> None:
        """Note errors that the guards did not see, as of a copy. They are of this session if it has failed."""
        # asyncpg does not say whether a statement has failed.
        if self.is_theirs or self.raw.closed or self.raw.info.transaction_status in _FAILED:
            for found in of_session(error):
                self.met(found)

    def refuse_end(self, what: str) -> None:
        raise ConfigError(
            f"{what} would end or change the job's transaction (job {self._job_id}), and later writes would not be fenced;"
            " the end of its `with` block commits it, an exception rolls it back; savepoints are allowed"
        )


class _Guarded:
    """Wraps a connection or cursor of the transaction and checks each call."""

    _transaction: Transaction
    _raw: Any

    def __init__(self, transaction: Transaction, raw: Any) -> None:
        object.__setattr__(self, "_transaction", transaction)
        object.__setattr__(self, "_raw", raw)

    # Libraries check the type of what they get.
    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        return type(self._raw)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._raw, name)
        if name in _SENDS:
            return self._looked_at(value)
        return value

    def _looked_at(self, send: Callable[..., Any]) -> Callable[..., Any]:
        transaction = self._transaction

        def sent(*args: Any, **words: Any) -> Any:
            transaction.refuse_if_over()
            query = args[0] if args else words.get("query", words.get("statement"))
            text = query.decode("utf-8", "replace") if isinstance(query, bytes) else query
            if isinstance(text, str) and _ENDS_TRANSACTION.match(text, _start_of(text)):
                transaction.refuse_end(text.strip()[:40])
            sent_at = transaction.monotonic()
            try:
                given = send(*args, **words)
            except psycopg.Error as error:
                transaction.met(error, sent_at)
                raise
            return _guarded(transaction, given, sent_at)

        return sent


class _Connection(_Guarded):
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
    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._raw, name, value)

    def __enter__(self) -> Any:
        self._raw.__enter__()
        return self

    def __exit__(self, *why: object) -> Any:
        return self._raw.__exit__(*why)

    async def __aenter__(self) -> Any:
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


def _guarded(transaction: Transaction, given: Any, sent_at: float) -> Any:
    """Guard the result of a call: a cursor, or an awaitable of one. Anything else is harmless."""
    if inspect.iscoroutine(given):
        return _awaited(transaction, given, sent_at)
    return _Cursor(transaction, given) if hasattr(given, "fetchall") else given


async def _awaited(transaction: Transaction, given: Any, sent_at: float) -> Any:
    try:
        return _guarded(transaction, await given, sent_at)
    except psycopg.Error as error:
        transaction.met(error, sent_at)
        raise
