"""Write how jobs ended, in batches. Each ending is written once, or refused and recorded; none is lost.

Each kind (completed, failed, released, suspended, started over) is a statement of its own. After a lost answer, `complete`
is simply sent again; the others first read which leases are still held.

The class of an error decides. A data error is about one ending: find it and write it without the bad value. Any other error
is about the moment (a lock, a cancelled statement, a migration, a full disk): send the batch again until it is written.
An error that does not come from the database is a fault of this program, and no waiting mends it: after some tries give the
ending up and let its lease expire, so that the job runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from faultline.attempt.storable_text import storable
from faultline.core import events
from faultline.core.errors import JobRejected
from faultline.core.model import Failure, Unwritten
from faultline.store import verbs
from faultline.store.reads import views
from faultline.store.translation import is_about_data
from faultline.worker.base.background_tasks import cancel
from faultline.worker.write.batcher import Batcher
from faultline.worker.write.endings import Completed, Ending, Failed, Released, StartedOver, Suspended, unstorable
from faultline.worker.write.write_retry import Failing, said

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.core.model import Lease
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.statement import Statement
    from faultline.worker.base.counters import Tally
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.lease.lease_table import Leases
    from faultline.worker.write.observers import Observers

_BUSY_PAUSE = 0.05
_REST_SECONDS = 0.02
#: How long the end of a job that computes may wait for others.
_GATHER_SECONDS = 0.06
#: With a shorter lease it does not wait.
_GATHER_LEASE_SECONDS_MIN = 1.0
#: How many parts of batches that the database refuses are sent at a time.
_PARTS_AT_ONCE = 2
#: A worker that gives up so many endings in a row will write none.
_GIVEN_UP_MAX = 10
_ERROR_LENGTH_MAX = 2000
#: The delay of a job whose own delay cannot be stored.
_PLAIN_DELAY_SECONDS = 60.0


_DETAILS: dict[type[Ending], str] = {
    Completed: "job_completed",
    Released: "job_released",
    Suspended: "job_suspended",
    StartedOver: "job_started_over",
}

_VERBS: dict[type[Ending], str] = {
    Completed: "complete",
    Failed: "fail",
    Released: "release",
    Suspended: "suspend",
    StartedOver: "continue_as_new",
}


class Completer:
    """Drops a lease once its ending is written, refused or given up.

    `on_flow_ended`: others may wait for a job that has ended. `on_helpless`: so many endings in a row were given up.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        leases: Leases,
        tally: Tally,
        on_flow_ended: Callable[[], None] = lambda: None,
        on_helpless: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._leases = leases
        self._tally = tally
        self._on_flow_ended = on_flow_ended
        self._on_helpless = on_helpless
        #: How many endings were given up since one was last written.
        self._given_up = 0
        #: Endings whose rows are locked. They go with the next batch.
        self._aside = 0
        #: Parts of batches that the database keeps refusing. Few at a time: they must not use all connections.
        self._parts: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_PARTS_AT_ONCE)
        #: A job of a flow has run here. Until then, endings are not searched for those that others may wait for.
        self.sees_flows = False
        #: None: nobody observes how jobs end.
        self.observers: Observers | None = None
        #: The last ending was refused: another worker has the job.
        self.refused_last = False
        self._closed = False
        self._kinds: dict[type[Ending], Batcher[Ending]] = {
            Completed: Batcher(
                self._send,
                size=lambda ending: len(ending.result),  # type: ignore[union-attr]
                rest_seconds=_REST_SECONDS,
                gather_seconds=_GATHER_SECONDS,
            ),
            Failed: Batcher(self._send, size=lambda ending: len(str(ending.failure.error))),  # type: ignore[union-attr]
            Released: Batcher(self._send),
            Suspended: Batcher(self._send, size=lambda ending: len(ending.waits)),  # type: ignore[union-attr]
            StartedOver: Batcher(self._send, size=lambda ending: len(ending.args)),  # type: ignore[union-attr]
        }

    def put(self, ending: Ending) -> None:
        self._kinds[type(ending)].put(ending)

    def put_with_others(self, ending: Ending) -> None:
        """More endings follow within moments. This one waits for them, if nothing waits for it."""
        hold = ending.hold
        can_wait = hold.lost is None and not hold.lease.in_flow and hold.lease.lease_seconds >= _GATHER_LEASE_SECONDS_MIN
        batcher = self._kinds[type(ending)]
        if can_wait and isinstance(ending, Completed):
            batcher.put_patiently(ending)
        else:
            batcher.put(ending)

    def nothing_to_write(self, hold: HeldLease) -> None:
        """The lease is lost, or the job completed itself."""
        self._leases.drop([hold])
        if hold.completed:
            hold.counts.succeeded += 1
            if hold.lease.in_flow:
                self._on_flow_ended()
            if events.are_detailed():
                events.emit_detail("job_completed", job_id=hold.lease.job_id, token=hold.lease.fencing_token)
            if self.observers is not None:
                self.observers.completed(hold)

    async def flushed(self) -> None:
        while True:
            for batcher in self._kinds.values():
                await batcher.flushed()
            if not self._aside and not self._parts:
                return
            await asyncio.sleep(_BUSY_PAUSE)

    async def close(self) -> None:
        """Stop sending. Jobs whose endings were not written run again when their leases expire."""
        self._closed = True
        for batcher in self._kinds.values():
            await batcher.close()
        await cancel(self._parts)

    async def _send(self, endings: list[Ending], failing: Failing | None = None) -> None:
        """Send one batch until each ending is written, refused, or found to be invalid."""
        failing = failing or Failing()
        while endings:
            try:
                async with self._turns if failing.apart else contextlib.nullcontext():
                    if isinstance(endings[0], Released):
                        endings = await self._not_completed(endings)
                    if failing.unanswered and endings:
                        endings = await self._still_to_write(endings)
                        failing.unanswered = False
                    unwritten = await self._database.run(self._built(endings)) if endings else Unwritten()
                busy = self._after(endings, unwritten)
            except asyncio.CancelledError:
                # A program that ends cancels all its tasks at once. Write the endings nevertheless.
                if self._closed:
                    raise
                failing.unanswered = True
            except Exception as error:  # noqa: BLE001 - no error may lose an ending
                if await self._failed(endings, failing, error):
                    return
            else:
                failing.is_over()
                self._put_aside(busy)
                return

    async def _failed(self, endings: list[Ending], failing: Failing, error: Exception) -> bool:
        """Returns whether the batch is taken care of. If not: send it again."""
        if is_about_data(error):
            await self._refused(endings, error)
            return True
        self._tally.database_failed()
        failing.meet(error, endings)
        if failing.persists and (len(endings) > 1 or not failing.apart):
            self._send_apart(endings, failing)
            return True
        if failing.is_hopeless:
            self._give_up(endings[0], error)
            return True
        await self._rest(failing.pause.next())
        return False

    def _built(self, endings: list[Ending]) -> Statement[Unwritten]:
        """An ending that cannot become a statement is treated like one that the database cannot store."""
        permits = self._leases.permits
        try:
            return statement_for(endings, claims=permits is not None and permits.claims_freed)
        except JobRejected:
            raise
        except Exception as error:
            raise JobRejected(f"{type(error).__name__}: {error}") from error

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if self._closed:
                raise

    def _after(self, endings: list[Ending], unwritten: Unwritten) -> list[Ending]:
        """Log the refused endings and drop every lease that is decided. Returns the endings whose rows are locked."""
        refused = {*unwritten.busy, *(refusal.lease for refusal in unwritten.stale)}
        written = [ending for ending in endings if ending.hold.lease not in refused] if refused else endings
        counts = {ending.hold.lease: ending.hold.counts for ending in endings} if unwritten.stale else {}
        for refusal in unwritten.stale:
            counts[refusal.lease].refuse(_VERBS[type(endings[0])], refusal.reason.value)
            events.emit(
                "stale_write_blocked",
                job_id=refusal.lease.job_id,
                stale_token=refusal.lease.fencing_token,
                current_token=refusal.current_token,
                reason=refusal.reason.value,
            )
        self._wrote(written)
        if self.sees_flows:
            self._ask_to_resolve(written)
        self.refused_last = bool(unwritten.stale)
        self._given_up = 0
        busy: set[Lease] = set(unwritten.busy)
        self._leases.drop([ending.hold for ending in endings if ending.hold.lease not in busy])
        return [ending for ending in endings if ending.hold.lease in busy]

    def _wrote(self, written: list[Ending]) -> None:
        _count(written)
        _log(written)
        if self.observers is not None:
            self.observers.ended(written)

    def _ask_to_resolve(self, written: list[Ending]) -> None:
        """Others may wait for these jobs. Have them looked at now, not when the next worker looks."""
        may_end = isinstance(written[0] if written else None, Completed | Failed)
        if may_end and any(ending.hold.lease.in_flow for ending in written):
            self._on_flow_ended()

    def _put_aside(self, busy: list[Ending]) -> None:
        """A row may be locked for long, and other endings must not wait for it."""
        if busy:
            self._aside += len(busy)
            asyncio.get_running_loop().call_later(_BUSY_PAUSE, self._put_back, busy)

    def _put_back(self, busy: list[Ending]) -> None:
        self._aside -= len(busy)
        for ending in busy:
            self.put(ending)

    async def _not_completed(self, endings: list[Ending]) -> list[Ending]:
        """Without jobs that their attempts completed after all. Their release would be recorded as a refusal."""
        in_doubt = [ending.hold.lease for ending in endings if isinstance(ending, Released) and ending.may_have_ended]
        done = await self._database.run(views.completed(in_doubt)) if in_doubt else set()
        completed: list[Ending] = [Completed(ending.hold, "null") for ending in endings if ending.hold.lease in done]
        self._wrote(completed)
        self._leases.drop([ending.hold for ending in completed])
        return [ending for ending in endings if ending.hold.lease not in done]

    async def _still_to_write(self, endings: list[Ending]) -> list[Ending]:
        """After a lost answer: `complete` finds its own row in the ledger, the other verbs look before they write again."""
        if isinstance(endings[0], Completed):
            return endings
        held = await self._database.run(views.still_held([ending.hold.lease for ending in endings]))
        gone = [ending for ending in endings if ending.hold.lease not in held]
        self._wrote(gone)
        self._leases.drop([ending.hold for ending in gone])
        return [ending for ending in endings if ending.hold.lease in held]

    def _send_apart(self, endings: list[Ending], failing: Failing) -> None:
        """The database keeps refusing, perhaps because of one row. Send halves, so that the others are written."""
        middle = (len(endings) + 1) // 2
        for half in filter(None, (endings[:middle], endings[middle:])):
            part = asyncio.create_task(self._send(half, Failing(apart=True, unanswered=failing.unanswered)))
            self._parts.add(part)
            part.add_done_callback(self._parts.discard)

    async def _refused(self, endings: list[Ending], error: Exception) -> None:
        """One ending that cannot be stored must not fail the others: halve the batch until it is alone."""
        if len(endings) > 1:
            middle = len(endings) // 2
            await self._send(endings[:middle])
            await self._send(endings[middle:])
            return
        (ending,) = endings
        plain = _plainly(ending, error)
        if plain is not None:
            await self._send([plain])
            return
        self._let_expire(ending, error)

    def _give_up(self, ending: Ending, error: Exception) -> None:
        """One job that cannot be written must not end the worker. But a worker that can write none runs all jobs in vain."""
        self._let_expire(ending, error)
        self._given_up += 1
        if self._given_up >= _GIVEN_UP_MAX:
            self._on_helpless(self._given_up)

    def _let_expire(self, ending: Ending, error: Exception) -> None:
        """Nobody renews its lease any longer: when it has expired, the job runs again."""
        events.emit("completion_failed", job_id=ending.hold.lease.job_id, error=said(error))
        self._leases.drop([ending.hold])


def _plainly(ending: Ending, error: Exception) -> Ending | None:
    """The same ending without the value that cannot be stored. None: nothing is left to leave out."""
    why = storable(f"{error}")[:_ERROR_LENGTH_MAX]
    match ending:
        case Completed(hold):
            # The task has done its work. Another attempt would do it again and fail again.
            return unstorable(hold, why)
        case Failed(hold, failure, plain=False):
            then = failure.then if failure.then in ("retry", "fail", "cancel") else "fail"
            return Failed(hold, Failure(f"its error cannot be stored: {why}", then), plain=True)
        case Released(hold, delay) if delay != _PLAIN_DELAY_SECONDS:
            return Released(hold, _PLAIN_DELAY_SECONDS, ending.may_have_ended)
        case Suspended(hold):
            # Another attempt would come to the same waits.
            return Failed(hold, Failure(f"what it waits for cannot be stored: {why}", "fail"))
        case StartedOver(hold):
            return Failed(hold, Failure(f"it cannot begin anew with these arguments: {why}", "fail"))
    return None


def _log(written: list[Ending]) -> None:
    """Failures are always logged, other endings only if details are wanted."""
    if isinstance(written[0] if written else None, Failed):
        for ending in written:
            if isinstance(ending, Failed):
                _log_failure(ending)
    elif events.are_detailed():
        for ending in written:
            lease = ending.hold.lease
            events.emit_detail(_DETAILS[type(ending)], job_id=lease.job_id, token=lease.fencing_token)


def _log_failure(ending: Failed) -> None:
    lease, failure, queue_name = ending.hold.lease, ending.failure, ending.hold.counts.queue
    if failure.then == "cancel":
        events.emit(
            "job_cancelled",
            job_id=lease.job_id,
            token=lease.fencing_token,
            task=lease.task,
            queue=queue_name,
            attempt=lease.attempt,
            reason=failure.error,
        )
    elif ending.is_final:
        events.emit(
            "job_failed",
            job_id=lease.job_id,
            token=lease.fencing_token,
            task=lease.task,
            queue=queue_name,
            attempt=lease.attempt,
            max_attempts=lease.max_attempts,
            error=failure.error,
        )
    else:
        again_in = failure.delay_seconds
        events.emit(
            "attempt_failed",
            job_id=lease.job_id,
            token=lease.fencing_token,
            task=lease.task,
            queue=queue_name,
            attempt=lease.attempt,
            max_attempts=lease.max_attempts,
            again_in=None if again_in is None else round(again_in, 3),
            error=failure.error,
        )


def _count(written: list[Ending]) -> None:
    for ending in written:
        counts = ending.hold.counts
        match ending:
            case Completed():
                counts.succeeded += 1
            case Released() | StartedOver():
                counts.released += 1
            case Suspended():
                counts.suspended += 1
            case Failed(failure=failure) if failure.then == "cancel":
                pass
            case Failed(is_final=False):
                counts.rescheduled += 1
            case Failed():
                counts.failed += 1


def statement_for(endings: list[Ending], *, claims: bool = False) -> Statement[Unwritten]:
    """One statement for endings of one kind. `claims`: this worker claims again at once."""
    leases = [ending.hold.lease for ending in endings]
    match endings[0]:
        case Completed():
            results = [ending.result for ending in endings if isinstance(ending, Completed)]
            return verbs.complete(leases, results, claims=claims)
        case Failed():
            return verbs.fail(leases, [ending.failure for ending in endings if isinstance(ending, Failed)])
        case Released():
            delays = [ending.delay_seconds for ending in endings if isinstance(ending, Released)]
            return verbs.release(leases, [None if delay is None else float(delay) for delay in delays])
        case Suspended():
            return verbs.suspend(leases, [ending.waits for ending in endings if isinstance(ending, Suspended)])
        case StartedOver():
            return verbs.continue_as_new(leases, [ending.args for ending in endings if isinstance(ending, StartedOver)])
