"""What goes over the wires of a real process, written to a file of its own as it happens, and read back as a history.

A statement is on the tape before it is sent, so a process that is killed leaves nothing out that may have taken effect: what
it could not write down any more is an answer, and its outcome is unknown. All processes of a machine share one clock.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import orjson
import psycopg

from faultline.core.host import Host
from faultline.store.connection.deadline import BoundedConnection
from faultline.store.translation import connection_was_lost
from faultline_proof.history import History
from faultline_proof.recording import VERBS, Line, answer, question, verb_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from pathlib import Path
    from uuid import UUID

    from faultline_proof.recording import Call, Rows


def read(paths: Iterable[Path], *, until: float = math.inf) -> History:
    """What several processes saw. An answer that came after `until` is taken for none: who reads the database while others
    still write to it does not know whether it has seen what they did.
    """
    history = History()
    for path in paths:
        replay(path.read_bytes(), history, until)
    history.operations.sort(key=attrgetter("invoked_at"))
    return history


def replay(tape: bytes, history: History, until: float = math.inf) -> None:
    """Tell again what is on a tape. A last line that was cut off by a kill is no line."""
    lines = tape.split(b"\n")[:-1]
    process = orjson.loads(lines[0]) if lines else ""
    now = [0.0]
    wires: dict[int, Line] = {}
    #: Of each wire those without an answer yet: psycopg may send a `begin` before what it was asked to send.
    calls: dict[int, list[Call]] = defaultdict(list)
    for line in lines[1:]:
        number, now[0], event, *words = orjson.loads(line)
        if event == "sent":
            if number not in wires:
                wires[number] = Line(history, process, partial(now.__getitem__, 0))
            calls[number].append(wires[number].asked(*words))
        elif now[0] <= until:
            getattr(calls[number].pop(), event)(*words)


class Recording:
    """The calls of one process. `Faultline(dsn, host=recording.host())` records everything it sends."""

    def __init__(self, file: BinaryIO, process: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._numbers = count(1)
        self._write(process)

    @classmethod
    @contextlib.contextmanager
    def to(cls, path: Path, process: str) -> Iterator[Self]:
        """Record to a new file. Unbuffered: what was written survives the death of the process."""
        with path.open("xb", buffering=0) as file:
            yield cls(file, process)

    def host(self, settings: Mapping[str, Any] | None = None, **words: Any) -> Host:
        """`settings`: of every connection, instead of those that the store asks for."""

        def connect(dsn: str, **usual: Any) -> psycopg.Connection[Any]:
            return self.connect(dsn, **{**usual, **(settings or {})})

        async def aconnect(dsn: str, **usual: Any) -> psycopg.AsyncConnection[Any]:
            return await self.aconnect(dsn, **{**usual, **(settings or {})})

        return Host(connect=connect, aconnect=aconnect, **words)

    def connect(self, dsn: str, **settings: Any) -> psycopg.Connection[Any]:
        connection = _Connection.connect(dsn, cursor_factory=_Cursor, **settings)
        connection.wire = _Wire(self, next(self._numbers))
        return connection

    async def aconnect(self, dsn: str, **settings: Any) -> psycopg.AsyncConnection[Any]:
        connection = await _AsyncConnection.connect(dsn, cursor_factory=_AsyncCursor, **settings)
        connection.wire = _Wire(self, next(self._numbers))
        return connection

    def saw(self, job_ids: Iterable[UUID], state: str) -> None:
        """What a client has told its caller of jobs: that they are there, whatever was on the wire."""
        number = next(self._numbers)
        self.put(number, "sent", "saw", [(str(job_id), None, None, None, state) for job_id in job_ids])
        self.put(number, "told", [])

    def put(self, wire: int, event: str, *words: Any) -> None:
        self._write((wire, self._clock(), event, *words))

    def _write(self, line: Any) -> None:
        # In one piece: threads of one process share the file.
        self._file.write(orjson.dumps(line) + b"\n")


class _Wire:
    """One connection."""

    def __init__(self, recording: Recording, number: int) -> None:
        self._recording = recording
        self._number = number

    def sent(self, query: Any, params: Any = None) -> _Sent:
        """To be called before it is sent. The protocol is spoken in plain text; what was composed is none of it."""
        return _Sent(self, verb_of(query) if isinstance(query, str | bytes) else "", params or ())

    def put(self, event: str, *words: Any) -> None:
        self._recording.put(self._number, event, *words)


class _Sent:
    """One statement. What is none of the protocol's is on the tape only if it fails, which may undo what was done before."""

    def __init__(self, wire: _Wire, verb: str, params: Any) -> None:
        self._wire = wire
        self.verb = verb
        if verb:
            wire.put("sent", verb, question(verb, params))

    @property
    def is_verb(self) -> bool:
        """Whether the rows of its answer are wanted."""
        return self.verb in VERBS

    def answered(self, rows: Rows | None = None) -> None:
        if self.verb:
            self._wire.put("told", answer(self.verb, rows or []))

    def raised(self, error: BaseException) -> None:
        """What psycopg says of a statement. An error that is none of the server's says nothing of what was done there."""
        if not self.verb:
            self._wire.put("sent", "", [])
        if isinstance(error, psycopg.Error) and error.sqlstate is not None and not connection_was_lost(error):
            self._wire.put("refused", str(error.diag.message_primary))
        else:
            self._wire.put("lost")


class _Commands:
    """psycopg sends the commands of `connection.transaction()` past its cursors."""

    wire: _Wire

    def _exec_command(self, command: Any, *words: Any) -> Generator[Any, Any, Any]:
        call = self.wire.sent(command)
        try:
            result = yield from super()._exec_command(command, *words)  # type: ignore[misc]
        except BaseException as error:
            call.raised(error)
            raise
        call.answered()
        return result


class _Connection(_Commands, BoundedConnection):
    def renewed(self, pgconn: Any) -> _Connection:
        """The same session in a new object, after somebody has used it: still on tape."""
        connection = _Connection(pgconn)
        connection.wire, connection.cursor_factory = self.wire, _Cursor
        return connection


class _AsyncConnection(_Commands, psycopg.AsyncConnection[Any]):
    def renewed(self, pgconn: Any) -> _AsyncConnection:
        connection = _AsyncConnection(pgconn)
        connection.wire, connection.cursor_factory = self.wire, _AsyncCursor
        return connection


class _Cursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **words: Any) -> Self:
        call = self.connection.wire.sent(query, params)  # type: ignore[attr-defined]
        try:
            super().execute(query, params, **words)
        except BaseException as error:
            call.raised(error)
            raise
        call.answered(self.fetchall() if call.is_verb else None)
        if call.is_verb and self.rowcount:
            self.scroll(0, mode="absolute")  # the caller wants to read them too
        return self


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    async def execute(self, query: Any, params: Any = None, **words: Any) -> Self:
        call = self.connection.wire.sent(query, params)  # type: ignore[attr-defined]
        try:
            await super().execute(query, params, **words)
        except BaseException as error:
            call.raised(error)
            raise
        call.answered(await self.fetchall() if call.is_verb else None)
        if call.is_verb and self.rowcount:
            await self.scroll(0, mode="absolute")
        return self
