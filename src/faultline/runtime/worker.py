"""A worker process: claims jobs, runs them, writes how they ended, and lets go in time.

Data flows one way: lane (claims) → executor (runs) → completer (writes). The heartbeat keeps the leases meanwhile, the
notifier brings hints, upkeep looks after everybody's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import string
from typing import TYPE_CHECKING, Any, Self

from faultline.core import events
from faultline.core.config import CLAIMS_AT_ONCE
from faultline.core.errors import ConfigError, DatabaseUnavailable
from faultline.runtime import tracing
from faultline.runtime.batcher import Batcher
from faultline.runtime.completer import Completer, Released
from faultline.runtime.executor import Executor
from faultline.runtime.heartbeat import Heartbeat
from faultline.runtime.lane import Company, Lane
from faultline.runtime.notifier import Notifier
from faultline.runtime.tally import Tally
from faultline.runtime.threads import Threads
from faultline.runtime.upkeep import Retention, Upkeep
from faultline.store import queue
from faultline.store.database import AsyncDatabase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from faultline.core.model import Bound
    from faultline.runtime.client import Faultline
    from faultline.runtime.completer import Ending
    from faultline.runtime.hold import Hold
    from faultline.runtime.tally import Report
    from faultline.store.database import Facts

_SETTLED_IN_SECONDS = 3.0
_REACH_SECONDS = 30.0
#: Longer than any statement of a worker takes: locks are waited for 10 s at most.
_ANSWER_SECONDS = 30.0


class Worker:
    """`async with app.worker(...)` runs one beside your program; `await worker.run()` until it is told to stop."""

    def __init__(
        self,
        app: Faultline,
        queues: Mapping[str, int],
        *,
        grace_seconds: float = 30.0,
        retention: Retention | None = None,
    ) -> None:
        if not queues or any(concurrency < 1 for concurrency in queues.values()):
            raise ConfigError("a worker needs at least one queue, each with a concurrency of at least 1: {'default': 50}")
        host = app.host
        # Short, since it stands in every lease and every ledger row: two of them are alike once in 10^15.
        self.id = "".join(host.chance.choices(string.digits + string.ascii_lowercase, k=10))
        self._app = app
        self._monotonic = host.monotonic
        self._grace_seconds = grace_seconds
        self._calls = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop
        self._stop = asyncio.Event()
        self._jobs: dict[Hold, Lane] = {}
        self._runners: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._connected_since: float | None = None
        self._services: list[asyncio.Task[None]] = []
        self._database = AsyncDatabase(
            app.dsn,
            connections_max=min(len(queues), CLAIMS_AT_ONCE) + 8,
            for_worker=True,
            answer_seconds=_ANSWER_SECONDS,
            host=host,
        )
        self._threads = Threads()
        self._tally = Tally(host.monotonic, queues)
        self._heartbeat = Heartbeat(app.dsn, self.id, queues, host, self._tally)
        self._completer = Completer(self._database, self._settled, self._tally)
        self._executor = Executor(app, self._database, self._threads, mark=self._marked, hand_over=self._handed_over)
        self._marks: Batcher[tuple[Hold, asyncio.Future[bool]]] = Batcher(self._mark)
        self._company: Company[Lane] = Company()
        self._lanes = {name: self._lane(name, concurrency) for name, concurrency in queues.items()}
        self._resting: frozenset[str] = frozenset()
        self._upkeep = Upkeep(
            self._database,
            settled_in=self._settled_in,
            retention=retention or Retention(),
            chance=host.chance,
            tally=self._tally,
        )
        self._notifier = Notifier(self._database, worker_id=self.id, on_work=self._hint, on_cancel=self._cancelled)

    def stop(self) -> None:
        """Claim nothing more, finish within the grace time, give the rest back."""
        self._stop.set()

    def report(self) -> Report:
        """What this worker has done so far. From any thread."""
        return self._tally.report(
            enqueued=self._app.enqueued,
            reconnects=self._heartbeat.reconnects + self._database.reconnects,
            leases=self._heartbeat.held,
        )

    async def run(self) -> None:
        async with self:
            await self._stop.wait()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        facts = await self._reached()
        self._tally.set_clock(facts.clock, self._monotonic())
        self._executor.tracing = tracing.configured()
        for lane in self._lanes.values():
            lane.tracing = self._executor.tracing
        self._heartbeat.start()
        upkeep = (self._upkeep.run(), self._upkeep.sample())
        loops = [*(lane.run() for lane in self._lanes.values()), self._notifier.run(), *upkeep]
        self._services = [asyncio.create_task(loop) for loop in loops]
        events.emit("worker_started", worker=self.id, queues=",".join(self._lanes))
        return self

    async def _reached(self) -> Facts:
        """A server that is just starting or failing over is waited for a while; one that is not there is told of."""
        give_up, pause = self._monotonic() + _REACH_SECONDS, 0.1
        while True:
            try:
                return await self._database.facts()
            except DatabaseUnavailable as error:
                if self._stop.is_set() or self._monotonic() >= give_up:
                    raise
                events.emit("database_unavailable", worker=self.id, error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, 3.0)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # A program that is going down with an error, or by Ctrl-C, does not wait for its jobs.
            await self._drain(self._grace_seconds if kind is None else 0.0)
        finally:
            await self._heartbeat.stop()
            self._threads.close()
            await self._database.close()
        events.emit("worker_exit", worker=self.id, reason="stale" if self._completer.refused_last else "success")

    def _lane(self, name: str, concurrency: int) -> Lane:
        return Lane(
            name,
            concurrency,
            database=self._database,
            owner=lambda: f"{self.id}/{next(self._calls)}",
            took=self._took,
            start=self._begin,
            rests=self._rests,
            company=self._company,
            chance=self._app.host.chance,
            tally=self._tally,
        )

    # From claim to ending

    def _took(self, holds: list[Hold]) -> None:
        self._heartbeat.keep(holds)
        for hold in holds if events.are_detailed() else ():
            events.emit_detail("lease_acquired", job_id=hold.lease.job_id, token=hold.lease.fencing_token)

    def _begin(self, lane: Lane, hold: Hold) -> None:
        self._jobs[hold] = lane
        runner = self._loop.create_task(self._executor.run(hold, lambda: self._follow(lane)))
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    def _follow(self, lane: Lane) -> Hold | None:
        hold = lane.follow()
        if hold is not None:
            self._jobs[hold] = lane
        return hold

    def _handed_over(self, hold: Hold, ending: Ending | None) -> None:
        if hold.began_at is not None:
            hold.counts.ran.append(self._monotonic() - hold.began_at)
        if ending is None:
            self._settled([hold])
            hold.counts.succeeded += hold.settled
            if hold.settled and events.are_detailed():
                events.emit_detail("job_completed", job_id=hold.lease.job_id, token=hold.lease.fencing_token)
        else:
            hold.ending = True
            self._completer.put(ending)
        self._jobs.pop(hold).finished(hold.lease)
        if not self._jobs:
            self._idle.set()

    def _settled(self, holds: Sequence[Hold]) -> None:
        self._heartbeat.drop(holds)

    async def _marked(self, hold: Hold) -> bool:
        """Put the start on record before it happens. False: the lease is lost, do not run."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._marks.put((hold, answer))
        return await answer

    async def _mark(self, asked: list[tuple[Hold, asyncio.Future[bool]]]) -> None:
        try:
            settled = await self._database.run(queue.mark_started([hold.lease for hold, _ in asked]))
            refused = {refusal.lease for refusal in settled.stale} | set(settled.busy)
            why = {refusal.lease: refusal.reason for refusal in settled.stale}
            for hold, _ in asked if why else ():
                if hold.lease in why:
                    hold.counts.refuse("mark_started", why[hold.lease])
        except Exception as error:  # noqa: BLE001 - somebody waits for the answer, whatever happened
            # Not on record, so not to be run: the lease runs out and the attempt is given back.
            self._tally.database_failed()
            events.emit("mark_failed", error=str(error))
            refused = {hold.lease for hold, _ in asked}
        for hold, answer in asked:
            if not answer.done():
                answer.set_result(hold.lease not in refused)

    # Hints

    def _hint(self, name: str | None, lowest: Bound | None, is_for_us: bool) -> None:  # noqa: FBT001
        for lane in self._lanes.values():
            if name is None or lane.name == name:
                lane.hint(lowest, wake=is_for_us)

    def _cancelled(self, job_id: UUID) -> None:
        self._heartbeat.lose(job_id, "not_running")

    def _rests(self, lane: Lane, rests: bool) -> bool:  # noqa: FBT001
        resting = self._resting | {lane.name} if rests else self._resting - {lane.name}
        changed = resting != self._resting
        if changed:
            self._resting = resting
            self._heartbeat.sleep_on(resting)
        return changed or not self._notifier.listening

    def _settled_in(self) -> bool:
        """Others that are coming back from the same outage as we are must not be taken for dead."""
        if not self._heartbeat.connected:
            self._connected_since = None
            return False
        now = self._monotonic()
        self._connected_since = self._connected_since or now
        return now >= self._connected_since + _SETTLED_IN_SECONDS

    # The end

    async def _drain(self, grace_seconds: float) -> None:
        # Others are to be woken instead.
        self._heartbeat.sleep_on(frozenset())
        await _cancel(self._services)
        unstarted = [hold for lane in self._lanes.values() for hold in lane.give_back()]
        for hold in unstarted:
            self._completer.put(Released(hold))
        if self._jobs:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._idle.wait()
        await _cancel(self._runners)
        for hold in self._jobs:
            # Cancelled before its first step, so nobody has given it back.
            self._completer.put(Released(hold))
        try:
            async with asyncio.timeout(10):
                await self._completer.flushed()
        except TimeoutError:
            events.emit("worker_gave_up", worker=self.id, reason="the database did not answer")


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
