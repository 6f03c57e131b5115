"""Live changes, read once for all who watch: one look at the database a second, however many streams there are.

Each line of the journal is sent at least once, with its number. A stream that reconnects with the last number that it saw
(`Last-Event-ID`) continues there. Numbers are assigned before they are committed, so a line may come late: gaps are watched
until every transaction that may fill them has ended, and no stream is asked to continue after a gap. A client that does not
keep up is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from faultline.core import events
from faultline.core.errors import FaultlineError
from faultline.core.journal import kind_of
from faultline.core.model import JobState
from faultline.store.reads import changes, overview
from faultline.store.verbs import sample
from faultline.web.server.problems import Problem
from faultline.worker.claim.notifier import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from faultline.store.reads.changes import Change, Reported
    from faultline.store.reads.overview import QueueLine
    from faultline.web.auth.caller import Caller
    from faultline.web.auth.connection_share import Shares
    from faultline.web.server.databases import Databases

_TICK_SECONDS = 1.0
#: A hint causes a look sooner, but not more often than this.
_TICK_SECONDS_MIN = 0.2
_LINES_MAX = 1000
#: So many jobs are followed in how far they are.
_PROGRESS_MAX = 500
#: A number that was skipped for so long was rolled back, unless a transaction that wrote lines is still open.
_GAP_SECONDS = 10.0
_GAPS_MAX = 1000
_WAITING_MAX = 256
_json = TypeAdapter(Any)


@dataclass(slots=True)
class Gap:
    """A skipped number. Dropped after `until`, once all transactions that wrote lines then have ended."""

    until: float
    writers: frozenset[str] | None = None


@dataclass(eq=False, slots=True)
class Client:
    """One stream. `waiting` holds what is still to be sent; None ends it."""

    caller: Caller
    waiting: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_WAITING_MAX))
    #: Why it was disconnected.
    ended: str | None = None

    def send(self, text: bytes) -> None:
        if self.ended is not None:
            return
        try:
            self.waiting.put_nowait(text)
        except asyncio.QueueFull:
            self.end("too_slow")

    def end(self, why: str) -> None:
        """Drop what waits, so that the end gets through."""
        self.ended = self.ended or why
        while not self.waiting.empty():
            self.waiting.get_nowait()
        self.waiting.put_nowait(None)


class Changes:
    def __init__(self, databases: Databases, shares: Shares) -> None:
        self._databases = databases
        self._shares = shares
        self._clients: set[Client] = set()
        self._watched = asyncio.Event()
        self._hint = asyncio.Event()
        self._last: int | None = None
        self._gaps: dict[int, Gap] = {}
        self._queues: list[QueueLine] = []
        #: What running jobs last said of how far they are.
        self._reported: dict[UUID, Reported] = {}
        self._looked_at = 0.0

    async def join(self, caller: Caller) -> Client:
        """Watch from now on. Raises a `Problem` when too many do."""
        if len(self._clients) >= self._databases.limits.streams_max:
            raise Problem(
                503,
                "TooManyStreams",
                f"This server already has {self._databases.limits.streams_max} live streams.",
                next_step="Poll instead, or try again later.",
                headers={"Retry-After": "10"},
            )
        if sum(client.caller.id == caller.id for client in self._clients) >= self._databases.limits.streams_caller_max:
            raise Problem(
                429,
                "TooManyStreams",
                f"You already have {self._databases.limits.streams_caller_max} live streams.",
                next_step="Close one of them, or share it.",
                headers={"Retry-After": "10"},
            )
        client = Client(caller)
        client.send(_event("queues", _shown(self._queues, caller)))
        self._clients.add(client)
        try:
            await self._begin()
        except BaseException:
            self.leave(client)
            raise
        self._watched.set()
        return client

    def leave(self, client: Client) -> None:
        self._clients.discard(client)

    def close(self) -> None:
        for client in list(self._clients):
            client.end("closing")

    async def missed(self, caller: Caller, number: int) -> list[bytes]:
        """What was sent after this number. If it is too much, the client is asked to reload instead."""
        last_safe = self._last_safe()
        found = await self._shares.of(caller).run(changes.since(number, lines_max=_LINES_MAX))
        if len(found) >= _LINES_MAX:
            return [_event("reset", {"reason": f"more than {_LINES_MAX} entries were missed"})]
        return [_journal_event(change, min(change.id, last_safe)) for change in found if _may_see(caller, change)]

    async def run(self) -> None:
        """Runs as long as the server."""
        notifier = Notifier(self._databases.read, on_work=lambda _: self._hint.set(), on_cancel=lambda _: self._hint.set())
        listening = asyncio.create_task(notifier.run())
        try:
            while True:
                await self._watched.wait()
                await self._look()
                await asyncio.sleep(_TICK_SECONDS_MIN)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_SECONDS - _TICK_SECONDS_MIN):
                        await self._hint.wait()
                self._hint.clear()
        finally:
            listening.cancel()

    async def _look(self) -> None:
        try:
            await self.tick()
        except FaultlineError as error:
            events.emit("live_changes_late", error=str(error)[:500])
        except Exception as error:  # noqa: BLE001 - the streams must go on
            events.emit("live_changes_failed", error=f"{type(error).__name__}: {error}"[:500])

    async def tick(self) -> None:
        """Look once and send what is new."""
        if not self._clients:
            self._watched.clear()
            self._last = None  # later streams begin then
            self._gaps.clear()
            self._reported.clear()
            return
        now = self._databases.host.monotonic()
        await self._begin()
        over = [gap for gap in self._gaps.values() if gap.until <= now]
        if over:  # read before the lines, so that theirs are among them
            writers = await self._databases.read.run(changes.writers())
            for gap in over:
                gap.writers = writers if gap.writers is None else gap.writers & writers
        found = await self._databases.read.run(changes.since(self._last or 0, also=list(self._gaps), lines_max=_LINES_MAX))
        for change in found:
            self._note(change, now)
            text = _journal_event(change, self._last_safe())
            for client in self._clients:
                if _may_see(client.caller, change):
                    client.send(text)
        self._gaps = {number: gap for number, gap in self._gaps.items() if gap.writers is None or gap.writers}
        if now - self._looked_at >= _TICK_SECONDS:
            self._looked_at = now
            await self._look_at_queues()
            await self._look_at_progress()

    async def _begin(self) -> None:
        """Read where the journal ends and which lines may still come late, before a stream asks for earlier ones."""
        if self._last is None:
            end = await self._databases.read.run(changes.end(_GAPS_MAX))
            self._begin_at(end.number, end.missing)

    def _begin_at(self, end: int, missing: list[int]) -> None:
        """Another task may have read an earlier end at the same time."""
        if self._last is None or end < self._last:
            self._last = end
            self._gaps.clear()
            self._miss(missing, self._databases.host.monotonic())

    def _miss(self, numbers: Iterable[int], now: float) -> None:
        self._gaps |= {number: Gap(now + _GAP_SECONDS) for number in numbers}
        for number in list(self._gaps)[:-_GAPS_MAX]:
            del self._gaps[number]

    async def _look_at_queues(self) -> None:
        with contextlib.suppress(FaultlineError):
            await self._databases.operate.run(sample())
        lines = await self._databases.read.run(overview.queues())
        if lines == self._queues:
            return
        self._queues = lines
        texts: dict[frozenset[str] | None, bytes] = {}
        for client in self._clients:
            bound = client.caller.queues
            if bound not in texts:
                texts[bound] = _event("queues", _shown(lines, client.caller))
            client.send(texts[bound])

    async def _look_at_progress(self) -> None:
        """Each job's last word, once a second at most; and the very last, with the state in which it ended or waits."""
        found = await self._databases.read.run(changes.progress(list(self._reported), jobs_max=_PROGRESS_MAX))
        for one in found:
            if self._reported.get(one.job_id) != one:
                text = _event("progress", one._asdict())
                for client in self._clients:
                    if client.caller.may_touch(one.queue):
                        client.send(text)
        self._reported = {one.job_id: one for one in found[:_PROGRESS_MAX] if one.state is JobState.RUNNING}

    def _note(self, change: Change, now: float) -> None:
        self._gaps.pop(change.id, None)
        if self._last is not None and change.id > self._last:
            first = max(self._last + 1, change.id - _GAPS_MAX)
            self._miss(range(first, change.id), now)
            self._last = change.id

    def _last_safe(self) -> int:
        """Everything up to this number has been sent."""
        return min(self._gaps) - 1 if self._gaps else self._last or 0


def _may_see(caller: Caller, change: Change) -> bool:
    kind = kind_of(change.event)
    if kind is not None and kind.about == "key":
        return caller.sees_keys
    return caller.queues is None or (change.queue is not None and change.queue in caller.queues)


def _journal_event(change: Change, last_safe: int) -> bytes:
    return _event("journal", change._asdict(), last_safe)


def _shown(lines: list[QueueLine], caller: Caller) -> list[dict[str, Any]]:
    return [asdict(line) for line in lines if caller.may_touch(line.name)]


def _event(kind: str, what: Any, number: int | None = None) -> bytes:
    head = f"event: {kind}\n" if number is None else f"event: {kind}\nid: {number}\n"
    return head.encode() + b"data: " + _json.dump_json(what) + b"\n\n"
