"""Write how jobs ended, in batches. An ending is written once, or refused and on record; none is lost while we live.

Its three kinds (completed, failed, released) are sent apart, each as one statement. An answer that was lost is asked for:
`complete` may simply be sent again; for the others the leases that are still held are found first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.core.errors import DatabaseUnavailable, FaultlineError, OutcomeUnknown
from faultline.core.model import Failure
from faultline.runtime.batcher import Batcher
from faultline.store import queue, views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faultline.core.model import Lease, Settled
    from faultline.runtime.hold import Hold
    from faultline.runtime.tally import Tally
    from faultline.store.database import AsyncDatabase
    from faultline.store.queue import Statement

_PAUSE_MIN, _PAUSE_MAX = 0.05, 2.0
_BUSY_PAUSE = 0.05
_REST_SECONDS = 0.02


# Not frozen: one is made for every job that runs.
@dataclass(slots=True)
class Completed:
    hold: Hold
    result: str  # JSON text


@dataclass(frozen=True, slots=True)
class Failed:
    hold: Hold
    failure: Failure


@dataclass(frozen=True, slots=True)
class Released:
    hold: Hold
    delay_seconds: float | None = None


Ending = Completed | Failed | Released
_EVENTS: dict[type[Ending], str] = {Completed: "job_completed", Failed: "job_failed", Released: "job_released"}

_VERBS: dict[type[Ending], str] = {Completed: "complete", Failed: "fail", Released: "release"}


class Completer:
    """`settled` is called for every ending once it is written or refused: the job is out of this worker's hands."""

    def __init__(self, database: AsyncDatabase, settled: Callable[[Sequence[Hold]], None], tally: Tally) -> None:
        self._database = database
        self._settled = settled
        self._tally = tally
        #: Endings whose rows somebody has locked, to be sent again with the next batch.
        self._aside = 0
        #: The last ending that was to be written was refused: somebody else has the job.
        self.refused_last = False
        self._kinds: dict[type[Ending], Batcher[Ending]] = {
            Completed: Batcher(
                self._send,
                size=lambda ending: len(ending.result),  # type: ignore[union-attr]
                rest_seconds=_REST_SECONDS,
            ),
            Failed: Batcher(self._send, size=lambda ending: len(ending.failure.error)),  # type: ignore[union-attr]
            Released: Batcher(self._send),
        }

    def put(self, ending: Ending) -> None:
        self._kinds[type(ending)].put(ending)

    async def flushed(self) -> None:
        while True:
            for batcher in self._kinds.values():
                await batcher.flushed()
            if not self._aside:
                return
            await asyncio.sleep(_BUSY_PAUSE)

    async def _send(self, endings: list[Ending]) -> None:
        pause = _PAUSE_MIN
        while endings:
            try:
                settled = await self._database.run(statement_for(endings))
            except (DatabaseUnavailable, OutcomeUnknown) as error:
                self._tally.database_failed()
                events.emit("completion_delayed", jobs=len(endings), error=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)
                endings = await self._still_to_write(endings, error)
            except FaultlineError as error:
                await self._split(endings, error)
                return
            except Exception as error:  # noqa: BLE001 - a batch that the server refuses as a whole
                await self._split(endings, error)
                return
            else:
                self._put_aside(self._after(endings, settled))
                return

    def _after(self, endings: list[Ending], settled: Settled) -> list[Ending]:
        """Report the refused ones, let go of all that is decided, and give back those whose rows somebody has locked."""
        unwritten = {*settled.busy, *(refusal.lease for refusal in settled.stale)}
        written = [ending for ending in endings if ending.hold.lease not in unwritten] if unwritten else endings
        _count(written)
        counts = {ending.hold.lease: ending.hold.counts for ending in endings} if settled.stale else {}
        for refusal in settled.stale:
            counts[refusal.lease].refuse(_VERBS[type(endings[0])], refusal.reason.value)
            events.emit(
                "stale_write_blocked",
                job_id=refusal.lease.job_id,
                stale_token=refusal.lease.fencing_token,
                current_token=refusal.current_token,
                reason=refusal.reason.value,
            )
        for ending in written if events.are_detailed() else ():
            lease = ending.hold.lease
            events.emit_detail(_EVENTS[type(ending)], job_id=lease.job_id, token=lease.fencing_token)
        self.refused_last = bool(settled.stale)
        busy: set[Lease] = set(settled.busy)
        self._settled([ending.hold for ending in endings if ending.hold.lease not in busy])
        return [ending for ending in endings if ending.hold.lease in busy]

    def _put_aside(self, busy: list[Ending]) -> None:
        """Whoever holds a job's row may do so for long: what ended meanwhile must not wait for that."""
        if busy:
            self._aside += len(busy)
            asyncio.get_running_loop().call_later(_BUSY_PAUSE, self._put_back, busy)

    def _put_back(self, busy: list[Ending]) -> None:
        self._aside -= len(busy)
        for ending in busy:
            self.put(ending)

    async def _still_to_write(self, endings: list[Ending], error: FaultlineError) -> list[Ending]:
        """After a lost answer: `complete` finds its own work in the ledger, the others must look before they write again."""
        if isinstance(endings[0], Completed) or not isinstance(error, OutcomeUnknown):
            return endings
        try:
            held = await self._database.run(views.still_held([ending.hold.lease for ending in endings]))
        except (DatabaseUnavailable, OutcomeUnknown):
            return endings
        gone = [ending for ending in endings if ending.hold.lease not in held]
        _count(gone)
        self._settled([ending.hold for ending in gone])
        return [ending for ending in endings if ending.hold.lease in held]

    async def _split(self, endings: list[Ending], error: Exception) -> None:
        """One ending that the server cannot take must not fail the others: halve until it stands alone."""
        if len(endings) > 1:
            middle = len(endings) // 2
            await self._send(endings[:middle])
            await self._send(endings[middle:])
            return
        (ending,) = endings
        if isinstance(ending, Completed):
            failure = Failure(f"its result cannot be stored: {error}")
            await self._send([Failed(ending.hold, failure)])
            return
        events.emit("completion_failed", job_id=ending.hold.lease.job_id, error=str(error))
        self._settled([ending.hold])


def _count(written: list[Ending]) -> None:
    for ending in written:
        counts = ending.hold.counts
        match ending:
            case Completed():
                counts.succeeded += 1
            case Released():
                counts.released += 1
            case Failed(failure=failure) if failure.then == "cancel":
                pass
            case Failed(hold, failure) if failure.then == "retry" and hold.lease.attempt < hold.lease.max_attempts:
                counts.retried += 1
            case Failed():
                counts.failed += 1


def statement_for(endings: list[Ending]) -> Statement[Settled]:
    """One statement for endings of one kind."""
    leases = [ending.hold.lease for ending in endings]
    match endings[0]:
        case Completed():
            return queue.complete(leases, [ending.result for ending in endings if isinstance(ending, Completed)])
        case Failed():
            return queue.fail(leases, [ending.failure for ending in endings if isinstance(ending, Failed)])
        case Released():
            return queue.release(leases, [ending.delay_seconds for ending in endings if isinstance(ending, Released)])
