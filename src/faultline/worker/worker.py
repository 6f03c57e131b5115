"""A worker process: claims jobs, runs them, writes how they ended, and lets go in time.

Data flows one way: lane (claims) → executor (runs) → completer (writes). The heartbeat keeps the leases meanwhile, the
notifier brings hints, upkeep looks after everybody's work.
"""

from __future__ import annotations

import asyncio
import itertools
import string
from typing import TYPE_CHECKING, Self

from faultline.core import events, forks
from faultline.core.errors import ConfigError
from faultline.core.model import Reason
from faultline.core.settings import Connections, check_limits, whole
from faultline.store import verbs
from faultline.store.idle import IDLE_SECONDS
from faultline.worker import databases, leaving, poll, tracing
from faultline.worker.completer import Completer, Released
from faultline.worker.executor import Executor
from faultline.worker.heartbeat import Heartbeat
from faultline.worker.lane import CLAIM_MAX, Company, Lane
from faultline.worker.marks import Marks
from faultline.worker.notifier import Notifier
from faultline.worker.poll import Poll
from faultline.worker.reaching import reached
from faultline.worker.services import Services, cancel
from faultline.worker.standby import Standby
from faultline.worker.tally import Tally
from faultline.worker.threads import Threads
from faultline.worker.unstarted import Unstarted
from faultline.worker.upkeep import Retention, Upkeep

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from faultline.app.registry import Registry
    from faultline.core.model import Bound
    from faultline.worker.completer import Ending
    from faultline.worker.hold import Hold
    from faultline.worker.tally import Report

_ANNOUNCE_SECONDS, _LISTED_SECONDS = 60.0, 0.5
_TICK_SECONDS = 0.25
#: How long a worker that stops waits for the database, beyond the grace time: for its last endings, and for late claims.
_WRITE_SECONDS = 10.0
#: How many leases are listed for the companion beside those that run and wait: endings on their way. And how many at most.
_LISTED_BESIDE, _LISTED_MAX = 4096, 32_768


class Worker:
    """`async with app.worker(...)` runs one beside your program; `await worker.run()` until it is told to stop."""

    #: This process runs the worker and nothing else, so the worker may end it.
    owns_process = False
    #: The worker asked to be replaced: a supervisor should start a fresh process.
    wants_replacement = False
    #: Attempts that went on after they were cancelled. Their leases were given back.
    left_behind = 0
    #: The database did not answer at the end: jobs were left to their leases.
    gave_up = False
    #: For the companion process: a file that says that a signal came, a socket to serve health on, a folder that the
    #: parent process reads.
    signals: int | None = None
    health: socket.socket | None = None
    health_folder: Path | None = None

    _entered = _said_stopping = False
    _standby: Standby | None = None
    _unstarted: Unstarted | None = None
    _next_tick: asyncio.TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop
    _resting: frozenset[str] = frozenset()

    def __init__(
        self,
        app: Registry,
        queues: Mapping[str, int],
        *,
        grace_seconds: float = 30.0,
        retention: Retention | None = None,
        abandoned_threads_max: int = 20,
        job_connections_max: int | None = None,
        silence_seconds: float = 60.0,
    ) -> None:
        _check(queues)
        check_limits(grace_seconds, silence_seconds, abandoned_threads_max)
        host = app.host
        # Short, since it stands in every lease and every ledger row: two of them are alike once in 10^15.
        self.id = "".join(host.chance.choices(string.digits + string.ascii_lowercase, k=10))
        self._app = app
        self._monotonic = host.monotonic
        self._grace_seconds = grace_seconds
        self._abandoned_threads_max = abandoned_threads_max
        self._silence_seconds = silence_seconds
        self._calls = itertools.count(1)
        self._stop = asyncio.Event()
        self._jobs: dict[Hold, Lane] = {}
        self._runners: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        #: What goes on until the worker stops, and what goes on until its last job has ended.
        self._services, self._last_services = Services(self.id), Services(self.id)
        #: How many connections it may have open at once.
        self.connections = Connections.of(len(queues), sum(queues.values()), job_connections_max)
        self._database = databases.of_engine(app, self.connections.engine, self.id)
        self._job_database, self._blocking_job_database = databases.of_jobs(app, self.connections.jobs, self.id)
        self._threads = Threads()
        self._tally = Tally(host.monotonic, queues)
        self._heartbeat = Heartbeat(app.dsn, self.id, queues, host, self._tally)
        self._completer = Completer(self._database, self._settled, self._tally)
        self._marks = Marks(self._database, self._tally, self._is_in_doubt)
        self._executor = self._new_executor()
        self._company: Company[Lane] = Company()
        self._poll = Poll(self._database, host.chance, self._tally) if len(queues) > poll.QUEUES_APART else None
        self._lanes = {name: self._lane(n, name, queues[name]) for n, name in enumerate(queues)}
        self._upkeep = Upkeep(
            self._database,
            settled_in=self._heartbeat.settled_in,
            behind=self._heartbeat.behind,
            retention=retention or Retention(),
            chance=host.chance,
            tally=self._tally,
        )
        self._notifier = Notifier(self._database, worker_id=self.id, on_work=self._hint, on_cancel=self._heartbeat.doubt)

    def stop(self) -> None:
        """Claim nothing more, finish within the grace time, give the rest back."""
        self.say_stopping()
        self._stop.set()
        if self._standby is not None:
            self._standby.shared.stop_asked(self._monotonic())

    def say_stopping(self, reason: str | None = None) -> None:
        """Once, by whoever comes first: from now on it may take the grace time until something is heard."""
        if not self._said_stopping:
            self._said_stopping = True
            level = events.INFO if reason is None else events.WARNING
            events.emit("worker_stopping", level=level, worker=self.id, reason=reason or "asked to stop")

    def report(self) -> Report:
        """What this worker has done so far. From any thread."""
        return self._tally.report(
            enqueued=self._app.enqueued,
            reconnects=self._heartbeat.reconnects + self._database.reconnects,
            leases=self._heartbeat.held,
        )

    async def run(self) -> None:
        async with self:
            try:
                await self._stop.wait()
            except asyncio.CancelledError:
                self._end_swept_away()
                raise

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ConfigError("this worker was started already, and one is started once; make another: app.worker(...)")
        self._entered = True
        self._loop = asyncio.get_running_loop()
        try:
            facts = await reached(self._database, self.id, self._stop.is_set)
        except BaseException:
            self._entered = False  # nothing of it was started
            raise
        self._job_database.know(facts)
        self._blocking_job_database.know(facts)
        self._tally.set_clock(facts.clock, self._monotonic())
        self._executor.tracing = tracing.configured()
        for lane in self._lanes.values():
            lane.tracing = self._executor.tracing
        if self._app.host.companion:
            self._start_companion()
        self._executor.program_ends = self._program_ends
        forks.keep_children_from(self._loop)
        self._heartbeat.start()
        self._last_services.start(self._canary, self._stand_in)
        upkeep = (self._upkeep.run, self._upkeep.sample, self._announce, self._shrink)
        loops = (each.run for each in (*self._lanes.values(), self._notifier, self._poll) if each is not None)
        self._services.start(*loops, *upkeep)
        queues, connections_max = ",".join(self._lanes), self.connections.most
        events.emit("worker_started", worker=self.id, queues=queues, connections_max=connections_max)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.say_stopping()
        try:
            # A program that is going down with an error, or by Ctrl-C, does not wait for its jobs.
            await self._drain(self._grace_seconds if kind is None else 0.0)
        finally:
            await self._last_services.stop()
            await self._heartbeat.stop(None if self.gave_up else self._database.run)
            self._stop_companion()
            forks.let_children_into(self._loop)
            self._threads.close()
            await self._database.close()
            await self._job_database.close()
            self._blocking_job_database.close()
        reason = "gave_up" if self.gave_up else "stale" if self._completer.refused_last else "success"
        events.emit("worker_exit", worker=self.id, reason=reason)

    async def _stand_in(self) -> None:
        await self._heartbeat.stand_in(self._database.run)

    async def _canary(self) -> None:
        """Nobody has a reason to cancel this but one who cancels everything."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._end_swept_away()
            raise

    async def _shrink(self) -> None:
        """Close connections that are not needed any more. The server has only so many, for all."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 2)
            await self._database.shrink()
            await self._job_database.shrink()
            self._blocking_job_database.shrink()

    def _new_executor(self) -> Executor:
        return Executor(
            self._app,
            self._job_database,
            self._blocking_job_database,
            self._threads,
            mark=self._marks.mark,
            hand_over=self._handed_over,
            abandoned=self._thread_abandoned,
        )

    def _lane(self, number: int, name: str, concurrency: int) -> Lane:
        return Lane(
            name,
            concurrency,
            database=self._database,
            owner=lambda: self._owner(number),
            took=lambda holds: self._took(number, holds),
            start=self._begin,
            rests=self._rests,
            give_back=self._give_back,
            poll=self._poll,
            company=self._company,
            chance=self._app.host.chance,
            tally=self._tally,
        )

    # From claim to ending

    def _owner(self, lane: int) -> str:
        """New for every claim."""
        claim = next(self._calls)
        if self._standby is not None:
            self._standby.claim_sent(lane, claim)
        return f"{self.id}/{claim}"

    def _took(self, lane: int, holds: list[Hold]) -> None:
        if self._standby is not None:
            self._standby.took(lane, holds)
        self._heartbeat.keep(holds)
        for hold in holds if events.are_detailed() else ():
            events.emit_detail("lease_acquired", job_id=hold.lease.job_id, token=hold.lease.fencing_token)

    def _begin(self, lane: Lane, hold: Hold) -> None:
        self._jobs[hold] = lane
        runner = self._loop.create_task(self._executor.run(hold, lambda: self._follow(lane)))
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    def _give_back(self, holds: list[Hold], delay_seconds: float | None = None) -> None:
        """Release what was not begun. Marked first, then looked whether the companion was quicker: once is enough."""
        doubtful = []
        for hold in holds:
            if self._standby is not None:
                self._standby.shared.ended(hold)
            if self._is_in_doubt(hold):
                doubtful.append(hold)
            else:
                self._completer.put(Released(hold, delay_seconds))
        if doubtful and self._unstarted is not None:
            self._unstarted.add(doubtful)

    def _follow(self, lane: Lane) -> Hold | None:
        hold = lane.follow()
        if hold is not None:
            self._jobs[hold] = lane
        return hold

    def _handed_over(self, hold: Hold, ending: Ending | None) -> None:
        if hold.began_at is not None:
            hold.counts.ran.append(self._monotonic() - hold.began_at)
        if ending is None and self._unstarted is not None and self._is_in_doubt(hold):
            self._unstarted.add([hold])
        elif ending is None:
            self._settled([hold])
            hold.counts.succeeded += hold.settled
            if hold.settled and events.are_detailed():
                events.emit_detail("job_completed", job_id=hold.lease.job_id, token=hold.lease.fencing_token)
        else:
            hold.ending = True
            if self._standby is not None:
                self._standby.shared.ended(hold)
            self._completer.put(ending)
        self._jobs.pop(hold).finished(hold.lease)
        if not self._jobs:
            self._idle.set()

    def _settled(self, holds: Sequence[Hold]) -> None:
        self._heartbeat.drop(holds)

    def _thread_abandoned(self, hold: Hold, stuck: int) -> None:
        """Each costs memory and whatever it holds, and nobody can end it: too many, and the process is to be replaced."""
        lease = hold.lease
        if self._app.tasks[lease.task].is_async:
            events.emit("attempt_left_behind", job_id=lease.job_id, task=lease.task, stuck=stuck)
        else:
            events.emit("thread_abandoned", job_id=lease.job_id, task=lease.task, stuck=stuck)
        if stuck <= self._abandoned_threads_max or self._stop.is_set():
            return
        if self.owns_process:
            action = "stopping, to be started afresh"
            self.wants_replacement = True
            self.stop()
        else:
            action = "none: restart this program"
        limit = self._abandoned_threads_max
        events.emit("threads_exhausted", worker=self.id, stuck=stuck, limit=limit, action=action)

    async def _announce(self) -> None:
        """Say which tasks are known here, and how many connections may be open: `faultline doctor` judges by both.

        Again and again: a worker that was taken off the list by mistake is put on it anew by its next beat.
        """
        while True:
            pause = _ANNOUNCE_SECONDS
            try:
                said = verbs.announce(self.id, sorted(self._app.tasks), self.connections.most)
                if not await self._database.run(said):
                    pause = _LISTED_SECONDS
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                self._tally.database_failed()
                events.emit("announce_failed", worker=self.id, error=str(error))
            await asyncio.sleep(pause)

    # Hints

    def _hint(self, name: str | None, lowest: Bound | None, is_for_us: bool) -> None:  # noqa: FBT001
        lanes = self._lanes.values() if name is None else [lane for lane in [self._lanes.get(name)] if lane is not None]
        for lane in lanes:
            lane.hint(lowest, wake=is_for_us)

    def _rests(self, lane: Lane, rests: bool) -> bool:  # noqa: FBT001
        resting = self._resting | {lane.name} if rests else self._resting - {lane.name}
        changed = resting != self._resting
        if changed:
            self._resting = resting
            self._heartbeat.sleep_on(resting)
        return changed or not self._notifier.listening

    # The companion

    def _start_companion(self) -> None:
        running = sum(lane.concurrency for lane in self._lanes.values())
        self._standby = standby = Standby(
            self._app.dsn,
            self.id,
            capacity=min(_LISTED_MAX, running + len(self._lanes) * 2 * CLAIM_MAX + _LISTED_BESIDE),
            grace_seconds=self._grace_seconds,
            silence_seconds=self._silence_seconds,
            owns_process=self.owns_process,
            signals=self.signals,
            health=self.health,
            folder=self.health_folder,
            monotonic=self._monotonic,
            tasks=self._app.tasks,
        )
        self._heartbeat.shared = standby.shared
        self._executor.begin = standby.shared.begin
        self._unstarted = Unstarted(standby, self._database, self._completer, self._heartbeat.drop, self._monotonic)
        if self._stop.is_set():
            standby.shared.stop_asked(self._monotonic())
        standby.start()
        self._tick()

    def _stop_companion(self) -> None:
        if self._next_tick is not None:
            self._next_tick.cancel()
        if self._standby is not None:
            self._executor.begin = None
            self._heartbeat.shared = None
            self._standby.stop()

    def _tick(self) -> None:
        """The sign of life of the event loop."""
        self._next_tick = self._loop.call_later(_TICK_SECONDS, self._tick)
        standby = self._standby
        if standby is not None:
            standby.shared.loop_ticked(self._monotonic())
            standby.tick()
            if standby.gave_back():
                events.emit("unstarted_given_back", worker=self.id, reason="the event loop was blocked")
                self._give_back([hold for lane in self._lanes.values() for hold in lane.give_back()])

    def _is_in_doubt(self, hold: Hold) -> bool:
        return self._standby is not None and hold.lost is None and self._standby.in_doubt(hold)

    # The end

    def _program_ends(self) -> bool:
        canary = self._last_services.task(self._canary)
        swept_away = canary.done() or canary.cancelling() > 0
        if swept_away:
            self._end_swept_away()
        return swept_away

    def _end_swept_away(self) -> None:
        """In the worker's own process nobody cancels the worker but a task, which has killed it so."""
        if self.owns_process and not self._said_stopping:
            leaving.crash_swept_away(self.id)

    async def _drain(self, grace_seconds: float) -> None:
        grace_over_at = self._loop.time() + grace_seconds
        # Others are to be woken instead.
        self._heartbeat.sleep_on(frozenset())
        await self._services.stop()
        self._give_back([hold for lane in self._lanes.values() for hold in lane.give_back()])
        cut_short = await self._grace(grace_seconds) if self._jobs else None
        self._executor.stopping = True
        leaving.tell_stopped(self._jobs, self._monotonic())
        await cancel(self._runners)
        self._leave_behind()
        for hold in self._jobs:
            # Cancelled before its first step, so nobody has given it back; or it goes on although it was cancelled.
            self._completer.put(Released(hold))
        try:
            async with asyncio.timeout_at(max(grace_over_at, self._loop.time()) + _WRITE_SECONDS):
                await self._settle_claims()
                if self._unstarted is not None:
                    await self._unstarted.resolved()
                await self._completer.flushed()
        except TimeoutError:
            self.gave_up = True
        finally:
            await self._completer.close()
        if self.gave_up:
            leaving.tell_left(self.id, self._heartbeat.holds())
        if cut_short is not None:
            raise cut_short

    async def _settle_claims(self) -> None:
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                for lane in self._lanes.values():
                    # Cut off, it may still wait for what the server says to that.
                    await asyncio.wait([self._services.task(lane.run)])
                    await lane.settle_claim()
        except TimeoutError:
            self.gave_up = True

    async def _grace(self, seconds: float) -> asyncio.CancelledError | None:
        """Wait for what runs. Cancelled meanwhile, the worker waits no longer, but gives its jobs back before it ends."""
        self._idle.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError as error:
            return error
        return None

    def _leave_behind(self) -> None:
        """Attempts that swallow their cancellation are not waited for. From here on, whatever they write is refused."""
        self.left_behind = sum(not runner.done() for runner in self._runners)
        for hold in self._jobs if self.left_behind else ():
            if hold.attempt is not None:
                lease = hold.lease
                events.emit("attempt_left_behind", job_id=lease.job_id, task=lease.task)
                hold.lose(Reason.LEASE_LOST)


def _check(queues: Mapping[str, int]) -> None:
    if not queues:
        raise ConfigError("a worker needs at least one queue, each with a concurrency of at least 1: {'default': 50}")
    for name, concurrency in queues.items():
        whole(f"the concurrency of queue {name}", concurrency)
