"""A worker process: claims jobs, runs them, writes how they ended, and lets go in time.

Leases flow one way: feed (claims) → executor (runs) → completer (writes). Each part gets the next ones in its constructor;
the worker makes, starts and stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import string
from typing import TYPE_CHECKING, Any, Self

from faultline.app.processes import check_tasks
from faultline.core import events, forks
from faultline.core.errors import ConfigError, SetupError
from faultline.core.model import Retention
from faultline.core.settings import WorkerSettings, check_options, whole
from faultline.worker.base.background_tasks import BackgroundTasks
from faultline.worker.base.counters import Tally
from faultline.worker.base.databases import Connections, Databases, wait_until_reachable
from faultline.worker.claim import poll
from faultline.worker.claim.feed import CLAIM_MAX, Feed
from faultline.worker.claim.poll import Poll
from faultline.worker.claim.wakeups import Hints
from faultline.worker.companion.client import Standby
from faultline.worker.lease.heartbeat import Heartbeat
from faultline.worker.lease.lease_table import Leases
from faultline.worker.lease.permits import Permits
from faultline.worker.lease.stop import Stop, log_left
from faultline.worker.run import tracing
from faultline.worker.run.crash_quarantine import CrashQuarantine
from faultline.worker.run.executor import Executor
from faultline.worker.run.lifespan import Lifespans, StoppedEarly
from faultline.worker.run.loop_watchdog import LoopTick
from faultline.worker.run.recycling import Recycling
from faultline.worker.upkeep.declaration_diff import Replaced
from faultline.worker.upkeep.duplicate_tasks import log_namesakes
from faultline.worker.upkeep.limit_declarations import Declaring
from faultline.worker.upkeep.maintenance import Upkeep
from faultline.worker.upkeep.registration import Announcing, Subscribing
from faultline.worker.upkeep.resolver import Resolver
from faultline.worker.upkeep.scheduler import Scheduler
from faultline.worker.write.completer import Completer
from faultline.worker.write.observers import Observers
from faultline.worker.write.release_unstarted import Unstarted
from faultline.worker.write.start_records import Marks

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Mapping

    from faultline.app.registry import Registry
    from faultline.worker.base.counters import Report

#: How long a stopping worker waits for the database beyond the grace time: for its last endings and for late claims.
_WRITE_SECONDS = 10.0
#: How long it waits for observers of what its last jobs did.
_OBSERVE_SECONDS = 10.0
#: How many leases of endings on their way are listed for the companion, beside running and waiting ones; the most in all.
_LISTED_BESIDE, _LISTED_MAX = 4096, 32_768


class Worker:
    """`async with app.worker(...)` runs a worker inside your program; `await worker.run()` runs it until it is stopped."""

    #: Attempts that went on after they were cancelled. Their jobs were released.
    left_behind = 0
    #: The database did not answer at the end: jobs were left until their leases expire.
    gave_up = False
    #: For the companion process: a file that shows signals, a socket to serve health on, a folder that the parent reads.
    signals: int | None = None
    health: socket.socket | None = None
    health_memory: int | None = None

    _entered = False
    _drained = False
    #: Until when the last endings may be written.
    _writing: asyncio.Timeout | None = None
    _companion: tuple[Standby, LoopTick] | None = None
    #: None: the program has none.
    _observers: Observers | None = None

    def __init__(  # noqa: PLR0913 - see `WorkerOptions`
        self,
        app: Registry,
        queues: Mapping[str, int],
        *,
        grace_seconds: float = WorkerSettings.grace,
        retention: Retention | None = None,
        abandoned_threads_max: int = WorkerSettings.abandoned_threads_max,
        job_connections_max: int | None = None,
        loop_timeout_seconds: float = WorkerSettings.loop_timeout,
        task_processes: int | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        _check(queues)
        log_namesakes(app, queues)
        check_options(grace_seconds=grace_seconds, loop_timeout_seconds=loop_timeout_seconds)
        check_options(abandoned_threads_max=abandoned_threads_max)
        wholes = {"task_processes": task_processes, "max_jobs": max_jobs, "max_memory": max_memory}
        check_options(**{name: given for name, given in wholes.items() if given is not None})
        host = app.host
        # Short, because every lease and ledger row has it. Two are equal once in 10^15.
        self.id = "".join(host.chance.choices(string.digits + string.ascii_lowercase, k=10))
        self._app = app
        self._monotonic = host.monotonic
        self._grace_seconds = grace_seconds
        self._loop_timeout_seconds = loop_timeout_seconds
        #: Those that run until the worker stops, and those that run until its last job has ended.
        self._services, self._last_services = BackgroundTasks(self.id), BackgroundTasks(self.id)
        self.connections = Connections.of(len(queues), sum(queues.values()), job_connections_max)
        self._databases = Databases(app, self.connections, self.id)
        self._database = database = self._databases.engine
        self._tally = tally = Tally(host.monotonic, queues)
        self._heartbeat = Heartbeat(app.dsn, self.id, queues, host, tally)
        self._leases = Leases(self.id, queues, self._heartbeat)
        self._feeds: dict[str, Feed] = {}
        self._resolver = Resolver(database, host.chance, tally)
        self._stop = Stop(self.id, self._leases, host.monotonic, abandoned_threads_max=abandoned_threads_max)
        self._completer = Completer(database, self._leases, tally, self._resolver.ask, self._stop.is_helpless)
        self._unstarted = Unstarted(self._leases, database, self._completer, self._feeds, host.monotonic)
        self._executor = self._new_executor()
        self._executor.task_processes = task_processes
        self._recycling = Recycling(self._stop, self._started, max_jobs, max_memory)
        self._hints = Hints(database, self.id, self._heartbeat, self._feeds, self._resolver.hint)
        self._poll = Poll(database, host.chance, tally) if len(queues) > poll.QUEUES_APART else None
        self._make_feeds(queues)
        self._upkeep = self._new_upkeep(retention or Retention())
        self._scheduler = Scheduler(database, self.id, app.schedule_declarations(), host.chance, tally)
        self._say(queues)

    def _new_executor(self) -> Executor:
        return Executor(
            self._app,
            self._databases,
            marks=Marks(self._database, self._leases, self._tally),
            leases=self._leases,
            completer=self._completer,
            unstarted=self._unstarted,
            stop=self._stop,
        )

    def _started(self) -> int:
        return sum(self._tally.of(name).started for name in self._feeds)

    def _say(self, queues: Mapping[str, int]) -> None:
        self._lifespans = Lifespans(self._app.hooks.lifespans, self.id, self._stop.replace)
        digests, tasks, most = self._scheduler.digests, self._app.tasks, self.connections.most
        self._announcing = Announcing(self._database, self.id, queues, tasks, most, self._tally, digests, self._declaring)
        self._subscribing = Subscribing(self._database, self.id, self._app.subscriptions(), self._tally)

    def _make_feeds(self, queues: Mapping[str, int]) -> None:
        company: CrashQuarantine[Feed] = CrashQuarantine()
        for name, concurrency in queues.items():
            self._feeds[name] = Feed(
                name,
                concurrency,
                database=self._database,
                leases=self._leases,
                executor=self._executor,
                unstarted=self._unstarted,
                hints=self._hints,
                poll=self._poll,
                company=company,
                chance=self._app.host.chance,
                tally=self._tally,
            )

        self._permits = self._leases.permits = Permits(self._feeds)
        self._declaring = Declaring(self._database, self.id, self._app, self._feeds, self._permits, self._tally)

    def _new_upkeep(self, retention: Retention) -> Upkeep:
        return Upkeep(
            self._database,
            may_judge=self._heartbeat.may_judge,
            behind=self._heartbeat.behind,
            latest=self._heartbeat.database_time_max,
            retention=retention,
            chance=self._app.host.chance,
            tally=self._tally,
            on_failed=self._resolver.ask,
            queues=list(self._feeds),
            permits=self._permits,
        )

    @property
    def owns_process(self) -> bool:
        """The process runs the worker and nothing else, so the worker may end it."""
        return self._stop.owns_process

    @owns_process.setter
    def owns_process(self, owns: bool) -> None:
        self._stop.owns_process = owns

    @property
    def wants_replacement(self) -> bool:
        """The worker asked to be replaced: a supervisor should start a fresh process."""
        return self._stop.wants_replacement

    def stop(self) -> None:
        """Stop claiming, let running jobs finish within the grace time, release the rest."""
        self._stop.ask()

    def say_stopping(self, reason: str | None = None) -> None:
        """Log that it stops: once, with the first reason."""
        self._stop.say(reason)

    def report(self) -> Report:
        """The counters of this worker. Safe to call from any thread."""
        return self._tally.report(
            enqueued=self._app.enqueued,
            reconnects=self._heartbeat.reconnects + self._database.reconnects,
            leases=self._heartbeat.held,
        )

    async def run(self) -> None:
        """Run until `stop` is called."""
        with contextlib.suppress(StoppedEarly):
            async with self:
                try:
                    await self._stop.asked.wait()
                except asyncio.CancelledError:
                    self._stop.end_swept_away()
                    raise

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ConfigError(
                "this worker was already started, and a worker can be started only once; create another: app.worker(...)"
            )
        self._entered = True
        try:
            facts = await wait_until_reachable(self._database, self.id, self._stop.asked.is_set)
        except BaseException:
            self._entered = False  # nothing was started
            raise
        try:
            await self._lifespans.open(self._stop.asked)
        except BaseException:
            await self._databases.close()
            raise
        self._hook()
        self._databases.know(facts)
        self._executor.know(facts)
        self._tally.set_clock(facts.clock, self._monotonic())
        self._executor.tracing = tracing.configured()
        await self._subscribing.begin()
        await self._scheduler.begin()
        replaced = Replaced(self._database, self.id, self._app, self._tally)
        await replaced.before()
        await self._declaring.begin()
        await replaced.after()
        for feed in self._feeds.values():
            feed.tracing = self._executor.tracing
        if self._app.host.companion:
            await self._start_companion()
        forks.keep_children_from(asyncio.get_running_loop())
        self._heartbeat.start()
        self._stop.watch(self._last_services)
        self._last_services.start(self._stand_in)
        said = (self._announcing.run, self._announcing.wake_changed_programs, self._subscribing.run, self._declaring.run)
        upkeep = (self._upkeep.run, self._upkeep.sample, *said, self._databases.shrink)
        every = (*self._feeds.values(), self._hints.notifier, self._poll, self._resolver, self._scheduler)
        loops = (each.run for each in every if each is not None)
        self._services.start(*loops, *upkeep)
        queues, connections_max = ",".join(self._feeds), self.connections.most
        events.emit("worker_started", worker=self.id, queues=queues, connections_max=connections_max)
        self._warn_of_unused_queues()
        return self

    def _hook(self) -> None:
        """Give each part what it needs of the program's hooks; without hooks, nothing."""
        hooks, executor = self._app.hooks, self._executor
        blocking = [one for one in hooks.middleware if not inspect.iscoroutinefunction(one)]
        check_tasks(self._app.tasks.values(), wrapped=bool(blocking))
        if self._recycling.is_wanted:
            self._services.start(self._recycling.run)
        executor.state = self._lifespans.state
        executor.wrap(hooks.middleware)
        if hooks.observe:
            self._observers = Observers(hooks, self._database, self._tally, executor)
            executor.observers = self._completer.observers = self._upkeep.observers = self._observers
            self._last_services.start(self._observers.run)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.say()
        if kind is not None:
            # A program that ends with an error or by Ctrl-C does not wait for its jobs.
            self._hurry()
        cancelled: asyncio.CancelledError | None = None
        try:
            cancelled = await self._surely(self._drain)
        finally:
            cancelled = await self._surely(self._fall_silent) or cancelled
            cancelled = await self._surely(self._lifespans.close) or cancelled
            self._stop_companion()
            forks.let_children_into(asyncio.get_running_loop())
            cancelled = await self._surely(self._executor.end) or cancelled
            self._executor.close()
            cancelled = await self._surely(self._databases.close) or cancelled
            reason = "gave_up" if self.gave_up else "stale" if self._completer.refused_last else "success"
            events.emit("worker_exit", worker=self.id, reason=reason)
        if cancelled is not None:
            raise cancelled

    async def _surely(self, part: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.CancelledError | None:
        """Run this part of the ending in its own asyncio task: a program that is cancelled meanwhile must not leave half a
        worker behind. The part may be started twice. Returns the cancellation.
        """
        cancelled: asyncio.CancelledError | None = None
        in_a_hurry = self._executor.in_a_hurry.is_set()
        ending = asyncio.create_task(part())
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                # Do not wait for the jobs any longer, but release them before the end.
                self._hurry()
                cancelled = error
            if ending.done() and ending.cancelled() and not in_a_hurry:
                # Cancelled with all tasks of a program that ends: once more, in a hurry.
                self._hurry()
                in_a_hurry = True
                ending = asyncio.create_task(part())
        if not ending.cancelled():
            ending.result()
        return cancelled

    async def _fall_silent(self) -> None:
        if not self._drained:
            # The program cancels all its tasks again and again, so there is no time for the database.
            self.gave_up = True
            self._executor.abandon()
        await self._completer.close()
        await self._last_services.stop()
        await self._heartbeat.stop(None if self.gave_up else self._database.run)

    async def _stand_in(self) -> None:
        await self._heartbeat.stand_in(self._database.run)

    def _warn_of_unused_queues(self) -> None:
        """A queue that no task names is often misspelt. Jobs may still be enqueued there by name or by their options."""
        used = {task.queue for name, task in self._app.tasks.items() if not name.startswith("faultline.")}
        for queue in self._feeds if used else ():
            if queue not in used:
                todo = "check the name, or ignore this if jobs are enqueued there with options(queue=…) or by name"
                events.emit("queue_unused", queue=queue, used=", ".join(sorted(used))[:1000], action=todo)

    async def _start_companion(self) -> None:
        try:
            self._keep_company(self._standby())
        except OSError as error:
            # Without room for the memory that they share.
            if self.health is not None or self.health_memory is not None:
                await self._lifespans.close()
                await self._databases.close()
                advice = "make room in the folder for temporary files (TMPDIR), or leave out --health-port"
                raise SetupError(
                    f"nobody could tell the health of this worker: no shared memory: {error}; {advice}"
                ) from error
            events.emit("companion_failed", worker=self.id, error=f"no shared memory: {error}; this worker runs without one")

    def _standby(self) -> Standby:
        running = sum(feed.concurrency for feed in self._feeds.values())
        return Standby(
            self._app.dsn,
            self.id,
            capacity=min(_LISTED_MAX, running + len(self._feeds) * 2 * CLAIM_MAX + _LISTED_BESIDE),
            grace_seconds=self._grace_seconds,
            loop_timeout_seconds=self._loop_timeout_seconds,
            owns_process=self.owns_process,
            signals=self.signals,
            health=self.health,
            memory=self.health_memory,
            monotonic=self._monotonic,
            tasks=self._app.tasks,
        )

    def _keep_company(self, standby: Standby) -> None:
        self._leases.list_for(standby)
        self._heartbeat.loop = asyncio.get_running_loop()
        self._stop.notify_companion()
        standby.start()
        tick = LoopTick(self.id, standby, self._unstarted, self._monotonic)
        tick.start()
        self._companion = standby, tick

    def _stop_companion(self) -> None:
        if self._companion is not None:
            standby, tick = self._companion
            tick.stop()
            self._leases.list_for(None)
            standby.stop()

    def _hurry(self) -> None:
        self._executor.in_a_hurry.set()
        if self._writing is not None:
            self._writing.reschedule(min(self._writing.when() or 0.0, asyncio.get_running_loop().time() + _WRITE_SECONDS))

    async def _drain(self) -> None:
        time = asyncio.get_running_loop().time
        grace_over_at = time() + self._grace_seconds
        # New jobs should wake other workers.
        self._heartbeat.sleep_on(frozenset())
        self._permits.end()
        await self._services.stop()
        self._unstarted.release_all()
        await self._executor.idle(self._grace_seconds)
        self.left_behind = await self._executor.stop()
        if self._executor.in_a_hurry.is_set():
            grace_over_at = time()
        try:
            async with asyncio.timeout_at(max(grace_over_at, time()) + _WRITE_SECONDS) as self._writing:
                await self._release_unanswered_claims()
                await self._unstarted.resolved()
                await self._completer.flushed()
        except TimeoutError:
            self.gave_up = True
        finally:
            self._writing = None
        await self._observed()
        if self.gave_up:
            log_left(self.id, self._heartbeat.holds())
        self._drained = True

    async def _observed(self) -> None:
        if self._observers is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self._executor.in_a_hurry.is_set() else _OBSERVE_SECONDS):
                    await self._observers.flushed()
            self._observers.close()

    async def _release_unanswered_claims(self) -> None:
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                for feed in self._feeds.values():
                    # A cancelled claim may still wait for the server's answer.
                    await asyncio.wait([self._services.task(feed.run)])
                    await feed.release_unanswered_claim()
        except TimeoutError:
            self.gave_up = True


def _check(queues: Mapping[str, int]) -> None:
    if not queues:
        raise ConfigError("a worker needs at least one queue, each with a concurrency of at least 1: {'default': 50}")
    for name, concurrency in queues.items():
        whole(f"the concurrency of queue {name}", concurrency)
