"""Streams: what a running job writes item by item, and how a handle reads it while the job runs.

Items are collected for a tenth of a second and sent together, fenced like every write of the job.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from faultline.core import events
from faultline.core.bounds import STREAM_BYTES_MAX, STREAM_NAME_LENGTH_MAX
from faultline.core.checks import check_readable
from faultline.core.errors import JobRejected, LimitReached
from faultline.store import jsontext
from faultline.store.verbs import streams
from faultline.store.verbs.streams import Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from uuid import UUID

    from faultline.core.model import Json
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.verbs.streams import Chunks

#: How long items are collected before they are sent.
COLLECT_SECONDS = 0.1
#: How long the end of an attempt waits for another branch, to send what is collected. That branch may have been forgotten.
FLUSH_SECONDS = 5.0
#: After so long it asks again, if the database has not taken it.
FLUSH_AGAIN_SECONDS = 0.5
#: How long a reader waits before it looks again: as often as there can be something new, and less often while there is not.
_LOOK_SECONDS_MIN, _LOOK_SECONDS_MAX = 0.05, 0.5


def asoon(seconds: float, call: Callable[[], Coroutine[Any, Any, None]], is_over: Callable[[], bool]) -> Callable[[], None]:
    """What calls this function so much later, from any thread, unless all is over by then. Not in the context of its caller,
    whose transaction it is not in.
    """
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    def run() -> None:
        if is_over():
            return
        task = loop.create_task(call(), context=Context())
        running.add(task)
        task.add_done_callback(running.discard)

    def begin() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(loop.call_later, seconds, run)

    return begin


def soon(seconds: float, call: Callable[[], None], is_over: Callable[[], bool]) -> Callable[[], None]:
    """The same for a blocking job."""

    def run() -> None:
        if not is_over():
            call()

    def begin() -> None:
        timer = threading.Timer(seconds, run)
        timer.daemon = True
        timer.start()

    return begin


#: Says whether what is written now was written before; or a function that says it once that is known.
_IsRepeated: TypeAlias = "Callable[[], bool | Callable[[], bool]]"


class Batch(NamedTuple):
    """Items that were written at one place of the program, to be sent together."""

    first_position: int
    items: str
    number: int
    #: Where the program was.
    reach: str


class Stream:
    """A stream of a running job, as `job.stream(name)` gives it. May be used from any thread of the job."""

    def __init__(
        self, job_id: UUID, name: str, soon: Callable[[], None], is_repeated: _IsRepeated, reach: Callable[[], str]
    ) -> None:
        self.name = name
        self._job_id = job_id
        self._soon = soon
        self._is_repeated = is_repeated
        #: Where the program is.
        self._reach = reach
        self._lock = threading.Lock()
        #: In their order: where the program was, and what it wrote there.
        self._waiting: list[tuple[str, list[str]]] = []
        #: Written before anybody knew what is recorded, and whether each was written before.
        self._unjudged: list[tuple[str, str, int, Callable[[], bool]]] = []
        self._position = 0
        self._bytes = 0
        self._error: Exception | None = None

    def write(self, item: Json) -> None:
        """Append an item. It is sent within about a tenth of a second, and before the next call of the job is recorded.

        A flow that runs again from the top writes nothing until it has passed its recorded calls: what it wrote before
        them is kept. Raises `LimitReached` when the stream is longer than 16 MiB, and `StaleLease` once the lease is lost.

        :param item: Text, or anything else that JSON can hold.
        """
        repeated = self._is_repeated()
        if repeated is True:
            return
        text = jsontext.encode(item, f"item of stream {self.name}")
        size, reach = len(text.encode()) + 2, self._reach()
        with self._lock:
            if self._error is not None:
                raise self._error
            is_first = not self._waiting and not self._unjudged
            if callable(repeated):
                self._unjudged.append((reach, text, size, repeated))
            else:
                self._judge()
                self._append(reach, text, size)
        if is_first:
            self._soon()

    def judge(self) -> None:
        """It is known what is recorded: of what was written before that, keep what is new."""
        with self._lock:
            self._judge()

    def _judge(self) -> None:
        unjudged, self._unjudged = self._unjudged, []
        for reach, text, size, is_repeated in unjudged:
            if not is_repeated():
                self._append(reach, text, size)

    def _append(self, reach: str, text: str, size: int) -> None:
        if self._bytes + size > STREAM_BYTES_MAX:
            raise LimitReached(
                f"stream {self.name} of job {self._job_id} would be longer than {STREAM_BYTES_MAX // 1024**2} MiB; write"
                " less, write to several streams, or store it elsewhere and stream a reference"
            )
        self._bytes += size
        if not self._waiting or self._waiting[-1][0] != reach:
            self._waiting.append((reach, []))
        self._waiting[-1][1].append(text)

    @property
    def is_unjudged(self) -> bool:
        """Whether something was written before anybody knew what is recorded."""
        return bool(self._unjudged)

    @property
    def has_more(self) -> bool:
        """Whether something waits to be sent."""
        return self._error is None and bool(self._waiting or self._unjudged)

    def batches(self) -> list[Batch]:
        """What waits to be sent."""
        with self._lock:
            if self._error is not None:
                return []
            found, position = [], self._position
            for reach, items in self._waiting:
                found.append(Batch(position, f"[{','.join(items)}]", len(items), reach))
                position += len(items)
            return found

    def written(self, batch: Batch) -> None:
        with self._lock:
            self._position += batch.number
            # Of the first ones: more may have been added to the last of these.
            del self._waiting[0][1][: batch.number]
            if not self._waiting[0][1]:
                del self._waiting[0]
            more = bool(self._waiting)
        if more:
            self._soon()

    def failed(self, error: Exception) -> None:
        """Nothing more can be written: the next `write` raises this."""
        with self._lock:
            self._error = self._error or error

    def later(self) -> None:
        """It could not be sent now."""
        self._soon()


@dataclass(frozen=True, slots=True)
class Restarted:
    """Among the items of a stream: a new attempt writes again what came behind the first `kept` items. Forget those.

    :param kept: How many of the items read so far stay; 0: begin anew.
    """

    kept: int  #: How many of the items read so far stay; 0: begin anew.


class Follows(Protocol):
    """What a reader needs of its application."""

    @property
    def database(self) -> Database: ...

    @property
    def async_database(self) -> AsyncDatabase: ...


class StreamReader:
    """The items of a stream, from its beginning to the end of the job: `for item in reader`, or `async for`.

    Waits for more while the job is open. A `Restarted` among the items says that a new attempt writes some of them again.
    """

    def __init__(self, app: Follows, job_id: UUID, name: str) -> None:
        check_stream_name(name)
        self._app = app
        self._job_id = job_id
        self._name = name

    def __iter__(self) -> Iterator[Json | Restarted]:
        """For blocking programs."""
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - as for other calls that block
            events.warn(
                f"to read stream {self._name} with `for` blocks, and an event loop is running in this thread: nothing else"
                " runs in it until there is more. Write `async for`"
            )
        reading, pause = _Reading(), threading.Event()
        while True:
            found = self._app.database.run(streams.chunks(self._job_id, self._name, reading.position))
            yield from reading.take(found)
            if found.has_ended:
                return
            pause.wait(reading.pause(found))

    async def __aiter__(self) -> AsyncIterator[Json | Restarted]:
        """For async programs."""
        reading = _Reading()
        while True:
            found = await self._app.async_database.run(streams.chunks(self._job_id, self._name, reading.position))
            for item in reading.take(found):
                yield item
            if found.has_ended:
                return
            await asyncio.sleep(reading.pause(found))


class _Reading:
    """Up to where a reader has come."""

    def __init__(self) -> None:
        self.position = Position()
        self._pause = _LOOK_SECONDS_MIN

    def take(self, found: Chunks) -> Iterator[Json | Restarted]:
        for chunk in found.chunks:
            if chunk.position < self.position.items:
                yield Restarted(chunk.position)
            self.position = Position(chunk.fencing_token, chunk.position, chunk.position + len(chunk.items))
            yield from chunk.items

    def pause(self, found: Chunks) -> float:
        self._pause = _LOOK_SECONDS_MIN if found.chunks else min(self._pause * 1.5, _LOOK_SECONDS_MAX)
        return 0.0 if found.more else self._pause


def check_stream_name(name: str) -> None:
    """Refuse a name that the database would refuse."""
    if not isinstance(name, str) or not 1 <= len(name) <= STREAM_NAME_LENGTH_MAX or "\x00" in name:  # type: ignore[redundant-expr]
        raise JobRejected(f"the name of a stream must be text of 1 to {STREAM_NAME_LENGTH_MAX} characters, not {name!r:.80}")
    check_readable("the name of a stream", name)
