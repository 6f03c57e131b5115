"""Crash a task at every fault point that it reaches, let it recover, and check that its effects exist exactly once.

Each crash is real: the job runs in its own process, which is killed with SIGKILL. Time is frozen and advanced by hand, so
nobody waits for leases to expire.
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
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ConfigError
from faultline.core.faults import POINTS, Faults, check_point
from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.testing import due_queues
from faultline.testing.child import run_in_child
from faultline.testing.databases import frozen_time
from faultline.testing.faults import CrashAt
from faultline.testing.jobs import registered
from faultline.testing.report import Crash, Report
from faultline.testing.running import drain, refuse_in_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from faultline.app.application import Faultline
    from faultline.core.model import JobRecord
    from faultline.store.testing import FrozenTime


def _points_of(*verbs: str) -> frozenset[str]:
    return frozenset(point for verb in verbs for point in (f"before_{verb}_sent", f"after_{verb}_committed"))


#: These run beside the task, so a crash there is a crash at a random moment and cannot be repeated.
_BESIDE = _points_of("beat", "renew", "reap", "resolve", "sweep")
#: The first claim gets the job; later ones find nothing.
_ONCE = _points_of("claim") | _BESIDE
#: A point that is reached more often, as in a loop, is not crashed at every visit.
VISITS_MAX = 5
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
) -> Report:
    """Run a job once per fault point that it reaches, crash it there, let it recover, and compare its effects.

        report = crash_everywhere(app, charge.bind(42), effects=lambda: count("payments"))

    The points are those of a first attempt that is not crashed; one that is reached several times is crashed at each visit.

    `effects` returns what the task did: a number, or a mapping from names to numbers, which grows by the same amount in
    every run. Other values can be compared if `reset` restores them before each run. A run without a crash gives the
    expected effects, or `expect` does.

    The task runs in a child process. So effects must outlive it (rows, files, calls to a server, but no variable), and
    the task must open its connections itself, or through the application, as it has to in a worker.

    `points`: crash only at these; `times`: how many times in a row to crash there; `time`: frozen time that the test
    already has. No other jobs may be due, and the conditions of `frozen_time` apply.
    """
    refuse_in_event_loop("crash_everywhere", "await asyncio.to_thread(crash_everywhere, ...)")
    if not isinstance(job, Submission):
        raise ConfigError(f"crash_everywhere needs a job with its arguments, not {job!r}; write: task.bind(...)")
    wanted = None if points is None else [check_point(point) for point in points]
    if times < 1:
        raise ConfigError(f"times is {times}; it must be at least 1")
    task = registered(app, job.task)
    with frozen_time(app) if time is None else contextlib.nullcontext(time) as frozen:
        trial = Trial(app, job, frozen, effects, reset)
        trial.refuse_company()
        try:
            expected, reached = trial.uncrashed(expect)
            chosen, left_out = _choose(reached, wanted)
            crashes = [trial.crashed(point, visit, times, expected) for point, visit in chosen]
        finally:
            trial.bury_workers()
    return Report(task, expected, tuple(crashes), left_out)


@dataclass(frozen=True, slots=True)
class Trial:
    """One job, run repeatedly, each time as a new one, with its effects counted from zero."""

    app: Faultline
    job: Submission
    time: FrozenTime
    effects: Callable[[], object]
    reset: Callable[[], object] | None

    def uncrashed(self, expect: object) -> tuple[object, list[str]]:
        """The effects of a run without a crash, and the fault points that it reaches."""
        before, job_id, queue = self._begin()
        life = run_in_child(self.app, queue, Faults())
        ended = self._run_to_end(job_id)
        if ended.state is not JobState.SUCCEEDED:
            raise AssertionError(
                f"{self.job.task} does not succeed without a crash; it is {ended.state}: {ended.last_error}"
            )
        after = self.effects()
        if after == before:
            raise AssertionError(
                f"effects() gave {before!r} before and after a run of {self.job.task} without a crash: it does not see "
                "what the task does. The task runs in a process of its own; look at what outlives that: rows, files, calls "
                "to a server, but no variable of this program"
            )
        seen = self._seen(before, after)
        if expect is not None and seen != expect:
            raise AssertionError(f"without any crash the effects of {self.job.task} are {seen!r}, not {expect!r}")
        return seen, life.reached

    def crashed(self, point: str, visit: int, times: int, expected: object) -> Crash:
        """Crash the job at this point, run it to its end, and compare."""
        before, job_id, queue = self._begin()
        deaths = 0
        for death in range(times):
            # A later attempt may skip stored steps, so it is crashed at its first visit.
            life = run_in_child(self.app, queue, CrashAt(point, visit=visit if death == 0 else 1))
            deaths += life.killed
            self._reap(job_id)
        ended = self._run_to_end(job_id)
        seen = self._seen(before, self.effects())
        return Crash(
            point=_name(point, visit),
            crashed=deaths > 0,
            state=ended.state,
            effects=seen,
            ok=deaths > 0 and ended.state is JobState.SUCCEEDED and seen == expected,
        )

    def refuse_company(self) -> None:
        """The recovering worker would run other jobs too, and their effects would count as this job's."""
        due = self.app.database.run(due_queues())
        if due:
            raise ConfigError(f"other jobs are due in {', '.join(due)}; run them first: drain(app)")

    def bury_workers(self) -> None:
        """Remove the rows of the killed workers, so that nobody takes them for alive."""
        self.time.advance(_SILENCE)
        self.app.database.run(verbs.reap())

    def _begin(self) -> tuple[object, UUID, str]:
        if self.reset is not None:
            self.reset()
        run = secrets.token_hex(6)
        queue = f"crash-test-{run}"
        key = self.job.idempotency_key
        job = replace(
            self.job,
            queue=queue,  # its own, so that the child finds nothing else
            idempotency_key=None if key is None else f"{key}#{run}",
            id=None,
            delay_seconds=None,
            run_at=None,
        )
        before = self.effects()
        (enqueued,) = self.app.database.run(verbs.enqueue_many([job]))
        return before, enqueued.job_id, queue

    def _reap(self, job_id: UUID) -> None:
        """Let the lease expire, and reap. The server may still be rolling back the dead worker's last transaction."""
        job = self.app.job(job_id)
        if job.lease_expires_at is not None:
            self.time.advance_to(job.lease_expires_at + _SILENCE)
        give_up = monotonic() + _PATIENCE_SECONDS
        while self.app.job(job_id).state is JobState.RUNNING:
            self.app.database.run(verbs.reap())
            if monotonic() > give_up:
                raise AssertionError(
                    f"job {job_id} was not reaped within {_PATIENCE_SECONDS:g} s of its worker's death; does the task "
                    "use a connection that this program opened? A child process shares it, and keeps its locks"
                )
            sleep(0.002)

    def _run_to_end(self, job_id: UUID) -> JobRecord:
        """Run it to its end, with later attempts and jobs that it enqueued."""
        drain(self.app, advancing=self.time, test_database=True)
        return self.app.job(job_id)

    def _seen(self, before: object, after: object) -> object:
        return after if self.reset is not None else _growth(before, after)


def _choose(reached: list[str], wanted: list[str] | None) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """Which visits of which points to crash at, in order, and which are too many."""
    visits: Counter[str] = Counter()
    chosen, left_out = [], []
    for point in filter(POINTS.__contains__, reached):  # reads have no points
        visits[point] += 1
        unwanted = point in _BESIDE if wanted is None else point not in wanted
        if unwanted or (point in _ONCE and visits[point] > 1):
            continue
        if visits[point] > VISITS_MAX:
            left_out.append(_name(point, visits[point]))
        else:
            chosen.append((point, visits[point]))
    missed = [point for point in wanted or [] if point not in visits]
    if missed or not chosen:
        raise ConfigError(
            f"the job never reaches {', '.join(missed) or 'any of these points'}; without a crash it reaches: "
            f"{', '.join(visits)}"
        )
    return chosen, tuple(left_out)


def _name(point: str, visit: int) -> str:
    return point if visit == 1 else f"{point}@{visit}"


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
