"""Crash a job at every fault point that it reaches, let it recover, and check that it ends as without a crash.

A flow has many lives: after each wait it runs again, and its children run beside it. It is crashed in each of them.

Each crash is real: the jobs run in their own process, which is killed with SIGKILL. Time is frozen and advanced by hand, so
nobody waits for leases to expire, or for a sleep.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from numbers import Number
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.core.errors import ConfigError
from faultline.core.faults import POINTS, Faults, check_point
from faultline.core.model import JobState, Submission
from faultline.store import testing, verbs
from faultline.testing.child import run_in_child
from faultline.testing.databases import frozen_time
from faultline.testing.faults import CrashAt
from faultline.testing.jobs import registered
from faultline.testing.report import Crash, Ended, Report
from faultline.testing.running import drain, refuse_in_event_loop, resolve_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from faultline.app.application import Faultline
    from faultline.app.handle import JobHandle
    from faultline.store.testing import FrozenTime


def _points_of(*verbs: str) -> frozenset[str]:
    return frozenset(point for verb in verbs for point in (f"before_{verb}_sent", f"after_{verb}_committed"))


#: These run beside the task, so a crash there is a crash at a random moment and cannot be repeated.
_BESIDE = _points_of("heartbeat", "renew", "reap", "resolve", "sweep")
#: The first claim gets the job; later ones find nothing.
_ONCE = _points_of("claim") | _BESIDE
#: A point that is reached more often in one life, as in a loop, is not crashed at every visit.
VISITS_MAX = 5
#: A job that has not ended after so many lives is not crashed: it would take hours.
LIVES_MAX = 100
#: So many lives more than without a crash, and it counts as stuck: as a flow whose program no longer fits its history.
_MORE_LIVES = 10
#: The database takes a worker without a heartbeat for three seconds for dead.
_SILENCE = timedelta(seconds=4)
_PATIENCE_SECONDS = 10.0


def crash_everywhere(
    app: Faultline,
    job: Submission,
    *,
    effects: Callable[[], object],
    expect: object = None,
    reset: Callable[[], object] | None = None,
    points: Iterable[str] | None = None,
    times: int = 1,
    time: FrozenTime | None = None,
    between: Callable[[JobHandle[Any]], object] | None = None,
) -> Report:
    """Run a job once per fault point that it reaches, crash it there, let it recover, and compare how it ends.

        report = crash_everywhere(app, charge.bind(42), effects=lambda: count("payments"))

    The points are those of a run that is not crashed; one that is reached several times is crashed at each visit. A flow
    runs life after life: it waits, time moves on, and it runs again in another process, as do the jobs that it calls, queue
    by queue. It is crashed at the points of each life: `life 2: before_record_sent`.

    `effects` returns what the task did: a number, or a mapping from names to numbers, which grows by the same amount in
    every run. Other values can be compared if `reset` restores them before each run. A run without a crash gives the
    expected effects, or `expect` does. The job may end as failed: the state and the class of the error are compared too, and
    the result of a flow if it is the same without a crash. A task without steps may name its attempt or token in its result.

    The task runs in a child process. So effects must outlive it (rows, files, calls to a server, but no variable), and
    the task must open its connections itself, or through the application, as it has to in a worker.

    `between`: called with the job's handle whenever nothing is due and the job has not ended, before time moves on to the
    next sleep or timeout that is over: it may send signals. `points`: crash only at these; `times`: how many times in a row
    to crash there; `time`: frozen time that the test already has. No other jobs may be due, and the conditions of
    `frozen_time` apply.
    """
    refuse_in_event_loop("crash_everywhere", "await asyncio.to_thread(crash_everywhere, ...)")
    if not isinstance(job, Submission):
        raise ConfigError(f"crash_everywhere needs a job with its arguments, not {job!r}; write: task.bind(...)")
    wanted = None if points is None else [check_point(point) for point in points]
    if times < 1:
        raise ConfigError(f"times is {times}; it must be at least 1")
    task = registered(app, job.task)
    with frozen_time(app) if time is None else contextlib.nullcontext(time) as frozen:
        trial = Trial(app, job, frozen, effects, reset, between)
        trial.refuse_company()
        try:
            return _report(trial, task, expect, wanted, times)
        finally:
            trial.bury_workers()


def _report(trial: Trial, task: str, expect: object, wanted: list[str] | None, times: int) -> Report:
    expected, lives = trial.uncrashed(expect)
    chosen, left_out = _choose(lives, wanted)
    found = [trial.crashed(spot, times, len(lives)) for spot in chosen]
    # A result with an id or a time in it is another one each time.
    is_other = expected.is_flow and any(ended.result != expected.result for _, _, ended in found)
    results = not is_other or trial.run().result == expected.result
    crashes = tuple(_judged(expected, *one, results=results and expected.is_flow) for one in found)
    return Report(task, expected.effects, crashes, left_out, len(lives), expected.shown, results)


class Spot(NamedTuple):
    """One visit of a fault point in one life."""

    life: int
    point: str
    visit: int

    @property
    def name(self) -> str:
        point = self.point if self.visit == 1 else f"{self.point}@{self.visit}"
        return point if self.life == 1 else f"life {self.life}: {point}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One job, run repeatedly, each time as a new one, with its effects counted from zero."""

    app: Faultline
    job: Submission
    time: FrozenTime
    effects: Callable[[], object]
    reset: Callable[[], object] | None
    between: Callable[[JobHandle[Any]], object] | None

    def uncrashed(self, expect: object) -> tuple[Ended, list[list[str]]]:
        """How a run without a crash ends, and the fault points that each of its lives reaches."""
        before, job_id = self._begin()
        lives: list[list[str]] = []
        while (queue := self._next_queue(job_id)) is not None:
            if len(lives) == LIVES_MAX:
                said = self.app.job(job_id).last_error
                raise AssertionError(f"{self.job.task} has not ended after {LIVES_MAX} lives without a crash: {said}")
            lives.append(run_in_child(self.app, queue, Faults()).reached)
        after = self.effects()
        ended = self._ended(job_id, before, after)
        if expect is None and after == before:
            raise AssertionError(
                f"effects() gave {before!r} before and after a run of {self.job.task} without a crash, which ended as: "
                f"{ended.shown}. It does not see what the task does. The task runs in a process of its own; look at what "
                "outlives that: rows, files, calls to a server, but no variable of this program. If this is right, as when "
                "all is undone, say so with expect=..."
            )
        if expect is not None and ended.effects != expect:
            raise AssertionError(
                f"without any crash the effects of {self.job.task} are {ended.effects!r}, not {expect!r}; {ended.shown}"
            )
        return ended, lives

    def crashed(self, spot: Spot, times: int, lives: int) -> tuple[Spot, bool, Ended]:
        """Crash the job there and run it to its end. Whether it died, and how it ended."""
        before, job_id = self._begin()
        deaths = life = 0
        while (queue := self._next_queue(job_id)) is not None:
            life += 1
            if life > 2 * lives + times + _MORE_LIVES:
                ended = self._ended(job_id, before, self.effects())
                self._give_up(job_id)
                return spot, deaths > 0, ended
            if spot.life <= life < spot.life + times:
                # A later attempt may skip stored steps, so it is crashed at its first visit.
                visit = spot.visit if life == spot.life else 1
                if run_in_child(self.app, queue, CrashAt(spot.point, visit=visit)).killed:
                    deaths += 1
                    self._reap()
            else:
                drain(self.app, queue, test_database=True)
        ended = self._ended(job_id, before, self.effects())
        if ended.state is JobState.QUEUED:
            self._give_up(job_id)
        return spot, deaths > 0, ended

    def run(self) -> Ended:
        """Run it once more without a crash."""
        before, job_id = self._begin()
        while (queue := self._next_queue(job_id)) is not None:
            drain(self.app, queue, test_database=True)
        return self._ended(job_id, before, self.effects())

    def refuse_company(self) -> None:
        """The recovering worker would run other jobs too, and their effects would count as this job's."""
        due = self.app.database.run(testing.due_queues())
        if due:
            raise ConfigError(f"other jobs are due in {', '.join(due)}; run them first: drain(app)")

    def bury_workers(self) -> None:
        """Remove the rows of the killed workers, so that nobody takes them for alive."""
        self.time.advance(_SILENCE)
        self.app.database.run(verbs.reap())

    def _begin(self) -> tuple[object, UUID]:
        if self.reset is not None:
            self.reset()
        run = secrets.token_hex(6)
        key = self.job.idempotency_key
        job = replace(
            self.job,
            queue=f"crash-test-{run}",  # its own: one queue at a time is run, so that each run has the same lives
            idempotency_key=None if key is None else f"{key}#{run}",
            id=None,
            delay_seconds=None,
            run_at=None,
        )
        before = self.effects()
        (enqueued,) = self.app.database.run(verbs.enqueue_many([job]))
        return before, enqueued.job_id

    def _next_queue(self, job_id: UUID) -> str | None:
        """The queue to run in the next life; time moves on until a job is due. None: no job is queued by time."""
        may_act = self.between is not None
        while True:
            self.app.database.run(verbs.reap())
            self.app.database.run(verbs.expire())
            resolve_all(self.app)
            queues = self.app.database.run(testing.due_queues())
            if queues:
                return queues[0]
            if may_act and self.between is not None and self.app.job(job_id).state is JobState.QUEUED:
                may_act = False
                self.between(self.app.handle(job_id))
                continue
            due = self.app.database.run(testing.next_due())
            if due is None:
                return None
            self.time.advance_to(due)
            may_act = self.between is not None

    def _reap(self) -> None:
        """Let leases expire, and reap. The server may still be rolling back the dead worker's last transaction."""
        running = self._running()
        self.time.advance_to(max((one.lease_expires_at or self.time.now for one in running), default=self.time.now))
        self.time.advance(_SILENCE)
        give_up = monotonic() + _PATIENCE_SECONDS
        while left := self._running():
            self.app.database.run(verbs.reap())
            if monotonic() > give_up:
                raise AssertionError(
                    f"job {left[0].id} was not reaped within {_PATIENCE_SECONDS:g} s of its worker's death; does the task "
                    "use a connection that this program opened? A child process shares it, and keeps its locks"
                )
            sleep(0.002)
        for one in running:
            job = self.app.job(one.id)
            if job.state is JobState.QUEUED and job.next_run_at is not None:
                # The pause after a lost attempt is no wait of the job's own.
                self.time.advance_to(job.next_run_at)

    def _running(self) -> list[Any]:
        return self.app.database.run(testing.jobs(state=JobState.RUNNING))

    def _give_up(self, job_id: UUID) -> None:
        """It does not end. Without it, the next run has nothing but its own jobs."""
        self.app.cancel(job_id, "crash_everywhere: it did not end")
        resolve_all(self.app)

    def _ended(self, job_id: UUID, before: object, after: object) -> Ended:
        job = self.app.job(job_id)
        has_failed = job.state in (JobState.FAILED, JobState.CANCELLED)
        error = (job.last_error or "").partition("\n")[0].partition(":")[0] if has_failed else None
        grown = after if self.reset is not None else _growth(before, after)
        return Ended(job.state, error, job.result, grown, is_flow=job.flow_id is not None)


def _judged(expected: Ended, spot: Spot, died: bool, ended: Ended, *, results: bool) -> Crash:  # noqa: FBT001 - of a tuple
    different = []
    if ended.effects != expected.effects:
        different.append(f"effects {ended.effects!r} instead of {expected.effects!r}")
    if results and ended.state is expected.state and ended.result != expected.result:
        different.append(f"result {ended.result!r:.80} instead of {expected.result!r:.80}")
    is_same_end = (ended.state, ended.error) == (expected.state, expected.error)
    if different or not is_same_end:
        different.append(ended.shown if is_same_end else f"{ended.shown} instead of {expected.shown}")
    return Crash(spot.name, died, ended.state, ended.effects, died and not different, ", ".join(different))


def _choose(lives: list[list[str]], wanted: list[str] | None) -> tuple[list[Spot], tuple[str, ...]]:
    """Which visits of which points to crash at, in order, and which are too many."""
    everywhere: Counter[str] = Counter()
    chosen: list[Spot] = []
    left_out: list[str] = []
    for life, reached in enumerate(lives, 1):
        visits: Counter[str] = Counter()
        for point in filter(POINTS.__contains__, reached):  # reads have no points
            visits[point] += 1
            unwanted = point in _BESIDE if wanted is None else point not in wanted
            if unwanted or (point in _ONCE and visits[point] > 1):
                continue
            spot = Spot(life, point, visits[point])
            if visits[point] > VISITS_MAX:
                left_out.append(spot.name)
            else:
                chosen.append(spot)
        everywhere += visits
    missed = [point for point in wanted or [] if point not in everywhere]
    if missed or not chosen:
        raise ConfigError(
            f"the job never reaches {', '.join(missed) or 'any of these points'}; without a crash it reaches: "
            f"{', '.join(everywhere)}"
        )
    return chosen, tuple(left_out)


def _growth(before: Any, after: Any) -> object:
    """By how much the effects have grown."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return {name: _growth(before.get(name, 0), after.get(name, 0)) for name in {**before, **after}}
    if all(isinstance(value, Number) and not isinstance(value, bool) for value in (before, after)):
        return after - before
    raise ConfigError(
        f"effects() gave {after!r}: without reset=... it must return a number, or a mapping from names to numbers, "
        "so that it can be said by how much it grew"
    )
