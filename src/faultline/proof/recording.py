"""Write down what a process sends to its database, and what comes back, as operations of a history.

A `Line` is one connection. It needs the text of a statement, its parameters and the rows of its answer, nothing else: a
simulated wire can use it. Real processes take the connections of a `Recording`, by way of their `Host`.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import orjson
import psycopg

from faultline.core.host import Host
from faultline.store.database import connection_was_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from faultline.proof.history import History, Operation

Rows = list[tuple[Any, ...]]

_BATCHES = frozenset({"renew", "mark_started", "complete", "fail", "release"})
_SINGLES = frozenset({"step", "progress", "fence"})
_FOR_A_JOB = frozenset({"cancel", "retry"})
_WITH_LEASES = frozenset({"claim", "granted_to", "reap"})
VERBS = _BATCHES | _SINGLES | _FOR_A_JOB | _WITH_LEASES | {"enqueue_many"}
_WORDS = frozenset({"begin", "commit", "rollback"})


class Line:
    """One connection. What is sent inside a transaction is answered for by its commit."""

    def __init__(self, history: History, process: str, clock: Callable[[], float]) -> None:
        self.history = history
        self.process = process
        self.clock = clock
        #: Answers that wait for the commit. None: no transaction is open.
        self.open: list[tuple[Operation, Callable[[float], None]]] | None = None
        self.broken = False

    def sent(self, sql: str | bytes, params: Sequence[Any] | None = None) -> Call:
        """To be called before it is sent. What is none of the protocol's verbs is followed for its transaction only."""
        verb = verb_of(sql if isinstance(sql, str) else sql.decode())
        operations = list(self._invoked(verb, params or ())) if verb in VERBS else []
        return Call(self, verb, operations)

    def _invoked(self, verb: str, params: Sequence[Any]) -> Iterator[Operation]:
        invoke, at = partial(self.history.invoke, self.process), self.clock()
        if verb == "enqueue_many":
            for job in orjson.loads(params[0]):
                job_id = UUID(job["id"]) if job.get("id") else None
                yield invoke("enqueue", at, job_id=job_id, key=job.get("idempotency_key"))
        elif verb in _BATCHES:
            # A lease that stands twice in a batch is written once.
            for job_id, token, owner in dict.fromkeys(zip(*map(_elements, params[:3]), strict=True)):
                yield invoke(verb, at, job_id=UUID(job_id), token=int(token), owner=owner)
        elif verb in _SINGLES:
            name = params[3] if verb == "step" else None
            yield invoke(verb, at, job_id=params[0], token=params[1], owner=params[2], detail=name)
        elif verb in _FOR_A_JOB:
            yield invoke(verb, at, job_id=params[0])
        else:
            owner = {"claim": 1, "granted_to": 0}.get(verb)
            yield invoke(verb, at, owner=None if owner is None else params[owner])

    def close(self, end: Callable[[Operation, Callable[[float], None]], None]) -> None:
        """The transaction is over: end what waited for it."""
        waiting, self.open, self.broken = self.open or [], None, False
        for operation, accept in waiting:
            end(operation, accept)


class Call:
    """One statement on its way. Ends once: answered, refused, or lost."""

    def __init__(self, line: Line, verb: str, operations: list[Operation]) -> None:
        self._line = line
        self._operations = operations
        self.verb = verb

    @property
    def is_verb(self) -> bool:
        """Whether the rows of its answer are wanted."""
        return self.verb in VERBS

    def answered(self, rows: Rows | None = None) -> None:
        line, at = self._line, self._line.clock()
        if self.verb == "begin":
            line.open = []
        elif self.verb == "rollback" or (self.verb == "commit" and line.broken):
            line.close(lambda operation, _: operation.failed(at, "rolled back"))
        elif self.verb == "commit":
            line.close(lambda _, accept: accept(at))
        for operation, accept, reason in self._read(rows or []):
            if reason is not None:
                operation.failed(at, reason)
            elif line.open is None:
                accept(at)
            else:
                line.open.append((operation, accept))

    def refused(self, why: str) -> None:
        """The server has answered with an error: nothing was done."""
        at = self._line.clock()
        self._line.broken = self._line.open is not None
        if self.verb in ("commit", "rollback"):
            self._line.close(lambda operation, _: operation.failed(at, why))
        for operation in self._operations:
            operation.failed(at, why)

    def lost(self) -> None:
        """No answer came. What a transaction has done before its commit was sent is surely undone."""
        line, at = self._line, self._line.clock()
        if line.open is None:
            for operation in self._operations:
                operation.unknown(at)
        elif self.verb == "commit":
            line.close(lambda operation, _: operation.unknown(at))
        else:
            for operation in self._operations:
                operation.failed(at, "rolled back")
            line.close(lambda operation, _: operation.failed(at, "rolled back"))

    def raised(self, error: BaseException) -> None:
        """What psycopg says of a statement. An error that is none of the server's says nothing of what was done there."""
        if isinstance(error, psycopg.Error) and error.sqlstate is not None and not connection_was_lost(error):
            self.refused(str(error.diag.message_primary))
        else:
            self.lost()

    def _read(self, rows: Rows) -> Iterator[tuple[Operation, Callable[[float], None], str | None]]:
        """Each operation with what to do when it is accepted, or why it was not."""
        operations = self._operations
        if not operations:
            return  # a question: its rows are of no shape that is known here
        if self.verb == "enqueue_many":
            # Ids that the client made just now are not told back.
            ids = [row[0] for row in rows] if rows and len(rows[0]) > 1 else [op.job_id for op in operations]
            for operation, job_id in zip(operations, ids, strict=True):
                yield operation, partial(operation.ok, job_id=job_id), None
        elif self.verb in _WITH_LEASES:
            (operation,) = operations
            leases = [(row[0], row[1], row[2] if self.verb == "reap" else operation.owner) for row in rows]
            yield operation, partial(operation.ok_with, leases=leases), None
        else:
            # Of one lease: why it was refused. Others answer with a state, or with nothing.
            refusals: dict[Any, str] = {(str(row[0]), row[1], row[2]): row[3] for row in rows if len(row) > 1}
            for operation in operations:
                yield operation, operation.ok, refusals.get((operation.job_id, operation.token, operation.owner))


@lru_cache(maxsize=1024)
def verb_of(sql: str) -> str:
    """The function of the schema that a statement calls, or the word that begins or ends a transaction."""
    if "owner = %s" in sql and "state = 'running'" in sql:
        return "granted_to"
    called = re.search(r"\bfaultline\.(\w+)\(", sql)
    word = sql.strip().partition(" ")[0].lower()
    return called[1] if called else word if word in _WORDS else ""


def _elements(array: str) -> list[str]:
    """The elements of a PostgreSQL array in its text form, as the store writes it: all of them quoted, or none."""
    inner = array[1:-1]
    if not inner.startswith('"'):
        return inner.split(",") if inner else []
    return [text.replace('\\"', '"').replace("\\\\", "\\") for text in inner[1:-1].split('","')]


# Real connections


class Recording:
    """The calls of one process. `Faultline(dsn, host=recording.host())` records everything it sends."""

    def __init__(self, history: History, process: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = history
        self.process = process
        self._clock = clock

    def host(self, **words: Any) -> Host:
        return Host(connect=self.connect, aconnect=self.aconnect, **words)

    def line(self) -> Line:
        return Line(self.history, self.process, self._clock)

    def connect(self, dsn: str, **settings: Any) -> psycopg.Connection[Any]:
        connection = RecordedConnection.connect(dsn, cursor_factory=RecordedCursor, **settings)
        connection.line = self.line()
        return connection

    async def aconnect(self, dsn: str, **settings: Any) -> psycopg.AsyncConnection[Any]:
        connection = await RecordedAsyncConnection.connect(dsn, cursor_factory=RecordedAsyncCursor, **settings)
        connection.line = self.line()
        return connection


class _Commands:
    """psycopg sends the commands of `connection.transaction()` past its cursors."""

    line: Line

    def _exec_command(self, command: Any, *words: Any) -> Generator[Any, Any, Any]:
        call = self.line.sent(command)
        try:
            result = yield from super()._exec_command(command, *words)  # type: ignore[misc]
        except BaseException as error:
            call.raised(error)
            raise
        call.answered()
        return result


class RecordedConnection(_Commands, psycopg.Connection[Any]):
    pass


class RecordedAsyncConnection(_Commands, psycopg.AsyncConnection[Any]):
    pass


class RecordedCursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **words: Any) -> Self:
        call = self.connection.line.sent(query, params)  # type: ignore[attr-defined]
        try:
            super().execute(query, params, **words)
        except BaseException as error:
            call.raised(error)
            raise
        call.answered(self.fetchall() if call.is_verb else None)
        if call.is_verb and self.rowcount:
            self.scroll(0, mode="absolute")  # the caller wants to read them too
        return self


class RecordedAsyncCursor(psycopg.AsyncCursor[Any]):
    async def execute(self, query: Any, params: Any = None, **words: Any) -> Self:
        call = self.connection.line.sent(query, params)  # type: ignore[attr-defined]
        try:
            await super().execute(query, params, **words)
        except BaseException as error:
            call.raised(error)
            raise
        call.answered(await self.fetchall() if call.is_verb else None)
        if call.is_verb and self.rowcount:
            await self.scroll(0, mode="absolute")
        return self
