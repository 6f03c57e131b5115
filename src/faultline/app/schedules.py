"""Schedules: rules that make jobs, declared in code or made at run time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast
from zoneinfo import ZoneInfo

from faultline import operate
from faultline.app.tasks import Task
from faultline.attempt.options import TaskOptions
from faultline.attempt.unawaited import must_await
from faultline.core.checks import check_name, check_readable, check_text, check_whole, seconds
from faultline.core.errors import ConfigError, JobRejected, ScheduleNotFound, declaring
from faultline.core.model import Submission
from faultline.core.schedules import (
    NAME_LENGTH_MAX,
    CatchUp,
    Overlap,
    Policy,
    Rule,
    digest_of,
)
from faultline.store import jsontext
from faultline.store.reads import schedules as reads
from faultline.store.verbs import schedules as verbs

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from faultline.core.checks import Duration
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.reads.schedules import ScheduleLine, TickLine
    from faultline.store.statement import Statement
    from faultline.store.verbs.schedules import Declaration

P = ParamSpec("P")
R = TypeVar("R")

#: Options that belong to one job, or to its time, which follows from the tick.
_OF_ONE_JOB = ("id", "idempotency_key", "run_at", "delay_seconds", "expires_at")
#: Of what one call lists.
_ROWS_MAX = 10_000
#: Stands for the moment of a tick where arguments are checked.
_SOME_TICK = datetime(2000, 1, 1, tzinfo=UTC)


class ScheduleOptions(TypedDict, total=False):
    """What a schedule does beside its rule: keyword arguments of `@app.schedule(…)` and `app.schedules.set(…)`."""

    #: The time zone of the cron line, such as `Europe/Berlin`, by its name or as a `ZoneInfo`. Default: UTC.
    tz: str | ZoneInfo
    #: Instead of a cron line: the time between ticks, at least a second. The first one comes after that time.
    every: Duration
    #: Instead of a cron line: one moment, with a time zone.
    at: datetime
    #: Of ticks that no worker decided about in time: none (`skip`), the `latest` (default) or `all` make their jobs.
    catch_up: CatchUp
    #: How late a tick may be caught up. Default: a day.
    catch_up_seconds: Duration
    #: While a job of the schedule has not ended: make another (`allow`, default), none (`skip`), one that waits (`one`), or
    #: cancel the old one (`cancel`). A flow has ended when all its jobs have.
    overlap: Overlap
    #: Jobs run up to so much later. Each tick has its own time, which is the same whoever decides.
    jitter: Duration
    #: The parameter of the task that gets the moment of the tick, best annotated as `datetime`.
    tick_arg: str


class _Scheduled(NamedTuple):
    """What `@app.schedule` was given."""

    task: Task[..., Any]
    rule: Rule
    policy: Policy
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    was: str | list[str] | None

    def job(self) -> Submission:
        argument = self.policy.tick_arg
        if argument is None:
            return _schedulable(self.task.bind(*self.args, **self.kwargs), self.policy)
        return _schedulable(self.task.ticking(self._at_some_tick(argument), argument), self.policy)

    def _at_some_tick(self, argument: str) -> Submission:
        """With a moment in place of the tick's: as a datetime, or as text if the task wants that."""
        try:
            return self.task.bind(*self.args, **self.kwargs | {argument: _SOME_TICK})
        except JobRejected:
            with contextlib.suppress(JobRejected):
                return self.task.bind(*self.args, **self.kwargs | {argument: _SOME_TICK.isoformat()})
            raise


class Scheduling:
    """The part of an application that declares schedules."""

    @cached_property
    def _scheduled(self) -> dict[str, _Scheduled]:
        return {}

    @cached_property
    def schedules(self) -> Schedules:
        """Make, change, pause, run and look at schedules at run time."""
        return Schedules(cast("Databases", self))

    def schedule(
        self,
        cron: str | None = None,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        was: str | Sequence[str] | None = None,
        **words: Unpack[ScheduleOptions],
    ) -> Callable[[Task[P, R]], Task[P, R]]:
        """Run a task by a rule: `@app.schedule("0 9 * * mon-fri", tz="Europe/Berlin")`, above `@app.task`.

        Every tick of the rule makes one job, whichever worker decides about it. A worker writes the schedules of its code to
        the database when it starts. While workers with other code run that has another rule under the same name, that one
        stays in force until the last of them has stopped.

        :param cron: A cron line: minute, hour, day of the month, month, day of the week. Or give `every=` or `at=`.
        :param args: Positional arguments of the task.
        :param kwargs: Named arguments of the task.
        :param name: The name of the schedule. Default: that of the task.
        :param was: Its name before, or all of them, the last one first: the schedule keeps its position and its history.
        :param words: See `ScheduleOptions`.
        """
        with declaring("@app.schedule"):
            rule, policy = _rule(cron, words), _policy(words)
            before = _names_before(was)
            check_text("the name of a schedule", name, NAME_LENGTH_MAX)
            check_readable("the name of a schedule", name or "", trimmed=True)
            _check_arguments(args, kwargs)

        def declare(task: Task[P, R]) -> Task[P, R]:
            if not isinstance(task, Task):
                raise ConfigError(f"@app.schedule needs a task, not {task!r}; put it above @app.task")
            found = _Scheduled(task, rule, policy, tuple(args), dict(kwargs or {}), before)
            own = name or task.name
            with declaring(f"schedule {own}"):
                found.job()  # raises where the mistake is made
            if own in self._scheduled:
                raise ConfigError(f"a schedule named {own} is declared already; give this one another name with name=...")
            self._scheduled[own] = found
            return task

        return declare

    def schedule_declarations(self) -> list[Declaration]:
        """What the code of this program says about schedules."""
        found = []
        for name, one in sorted(self._scheduled.items()):
            spec = verbs.spec_text(one.rule, one.job(), one.policy)
            found.append(verbs.Declaration(name, digest_of(name, f"{one.was}\n{spec}"), one.was, spec))
        return found


class Databases(Protocol):
    """What schedules need of an application."""

    @property
    def database(self) -> Database: ...
    @property
    def async_database(self) -> AsyncDatabase: ...
    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...


class Schedules:
    """Schedules at run time: `app.schedules`. What is done holds at once, for all workers."""

    def __init__(self, app: Databases) -> None:
        self._app = app

    def set(
        self,
        name: str,
        job: Submission | None,
        *,
        cron: str | None = None,
        by: str | None = None,
        reason: str | None = None,
        **words: Unpack[ScheduleOptions],
    ) -> bool:
        """Make a schedule, or change one: `app.schedules.set("report-7", report.bind(7), cron="0 6 * * *")`.

        A schedule of the code gets this instead of what the code says, until it is set to None. With the same rule it keeps
        its position. Returns whether this changed anything.

        :param name: Which schedule. 1 to 200 characters.
        :param job: The job of each tick, as `task.bind(…)` makes it. None: back to what the code says.
        :param cron: A cron line of five fields. Or `every=`, or `at=`.
        :param by: Who sets it, as for `cancel`.
        :param reason: Recorded in the journal, and shown with the schedule.
        :param words: See `ScheduleOptions`.
        """
        return self._app.database.run(_set(self._app, name, job, cron, words, by, reason))

    @must_await
    async def aset(
        self,
        name: str,
        job: Submission | None,
        *,
        cron: str | None = None,
        by: str | None = None,
        reason: str | None = None,
        **words: Unpack[ScheduleOptions],
    ) -> bool:
        """`set` for async programs."""
        return await self._app.async_database.run(_set(self._app, name, job, cron, words, by, reason))

    def remove(self, name: str, *, by: str | None = None, reason: str | None = None) -> bool:
        """Remove a schedule. Its jobs stay. Returns whether there was one.

        Raises `IllegalTransition` for one in the code of a worker that runs: it would make it again. Pause it instead.

        :param name: Which schedule.
        :param by: Who removes it, as for `cancel`.
        :param reason: Recorded in the journal.
        """
        return self._app.database.run(operate.remove_schedule(name, by=by, reason=reason))

    @must_await
    async def aremove(self, name: str, *, by: str | None = None, reason: str | None = None) -> bool:
        return await self._app.async_database.run(operate.remove_schedule(name, by=by, reason=reason))

    def pause(self, name: str, *, by: str | None = None, reason: str | None = None) -> datetime:
        """Pause a schedule: its ticks make no jobs until `resume`. Returns since when.

        :param name: Which schedule.
        :param by: Who pauses it, as for `cancel`.
        :param reason: Recorded in the journal, and shown with the schedule.
        """
        return self._app.database.run(operate.pause_schedule(name, by=by, reason=reason))

    @must_await
    async def apause(self, name: str, *, by: str | None = None, reason: str | None = None) -> datetime:
        return await self._app.async_database.run(operate.pause_schedule(name, by=by, reason=reason))

    def resume(self, name: str, *, by: str | None = None, reason: str | None = None) -> bool:
        """Resume a schedule. Ticks from now on count: what was paused on purpose is not caught up, but may be backfilled.

        Returns whether it was paused.

        :param name: Which schedule.
        :param by: Who resumes it, as for `cancel`.
        :param reason: Recorded in the journal.
        """
        return self._app.database.run(operate.resume_schedule(name, by=by, reason=reason))

    @must_await
    async def aresume(self, name: str, *, by: str | None = None, reason: str | None = None) -> bool:
        return await self._app.async_database.run(operate.resume_schedule(name, by=by, reason=reason))

    def run_now(self, name: str, *, by: str | None = None, reason: str | None = None) -> UUID:
        """Enqueue the job of a schedule now, beside its ticks and also while it is paused. Returns its id.

        :param name: Which schedule.
        :param by: Who runs it, as for `cancel`.
        :param reason: Recorded in the journal.
        """
        return self._app.database.run(operate.run_schedule(name, by=by, reason=reason))

    @must_await
    async def arun_now(self, name: str, *, by: str | None = None, reason: str | None = None) -> UUID:
        return await self._app.async_database.run(operate.run_schedule(name, by=by, reason=reason))

    def backfill(
        self, name: str, first: datetime, last: datetime, *, by: str | None = None, reason: str | None = None
    ) -> int:
        """Enqueue jobs for ticks of the past that have none: missed, skipped or from before. Returns how many.

        Raises `JobRejected` with the count if there are more than 10,000 ticks, and if all of them have yet to come.

        :param name: Which schedule.
        :param first: Ticks from this moment on.
        :param last: Ticks up to this moment.
        :param by: Who asks for it, as for `cancel`.
        :param reason: Recorded in the journal.
        """
        operate.check_backfill(first, last)
        found = _found(name, self._app.database.run(reads.schedule(_named(name))))
        return self._app.database.run(operate.backfill(found, first, last, by=by, reason=reason))

    @must_await
    async def abackfill(
        self, name: str, first: datetime, last: datetime, *, by: str | None = None, reason: str | None = None
    ) -> int:
        """`backfill` for async programs."""
        operate.check_backfill(first, last)
        found = _found(name, await self._app.async_database.run(reads.schedule(_named(name))))
        return await self._app.async_database.run(operate.backfill(found, first, last, by=by, reason=reason))

    def list(self) -> list[ScheduleLine]:
        """All schedules, by name."""
        return self._app.database.run(reads.schedules())

    @must_await
    async def alist(self) -> Sequence[ScheduleLine]:
        return await self._app.async_database.run(reads.schedules())

    def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """When a schedule ticks next. Nothing for one that is paused or has ended.

        :param name: Which schedule.
        :param count: How many ticks.
        """
        check_whole("count", count, 1, _ROWS_MAX)
        return _found(name, self._app.database.run(reads.schedule(_named(name)))).upcoming(count)

    @must_await
    async def anext(self, name: str, count: int = 5) -> Sequence[datetime]:
        check_whole("count", count, 1, _ROWS_MAX)
        return _found(name, await self._app.async_database.run(reads.schedule(_named(name)))).upcoming(count)

    def history(self, name: str, count: int = 50) -> Sequence[TickLine]:
        """What was decided about the last ticks of a schedule, newest first.

        :param name: Which schedule.
        :param count: How many rows. A run of missed ticks is one.
        """
        check_whole("count", count, 1, _ROWS_MAX)
        found = self._app.database.run(reads.ticks(_named(name), rows_max=count))
        if not found:
            _found(name, self._app.database.run(reads.schedule(name)))
        return found

    @must_await
    async def ahistory(self, name: str, count: int = 50) -> Sequence[TickLine]:
        check_whole("count", count, 1, _ROWS_MAX)
        found = await self._app.async_database.run(reads.ticks(_named(name), rows_max=count))
        if not found:
            _found(name, await self._app.async_database.run(reads.schedule(name)))
        return found


def _set(
    app: Databases,
    name: str,
    job: Submission | None,
    cron: str | None,
    words: ScheduleOptions,
    by: str | None,
    reason: str | None,
) -> Statement[bool]:
    _named(name)
    if job is None:
        if cron is not None or words:
            raise JobRejected(f"schedule {name}: without a job it goes back to what the code says; leave its rule out, too")
        return operate.reset_schedule(name, by=by, reason=reason)
    policy = _policy(words)
    job = _schedulable(_ticking(app, _bound(job), policy.tick_arg), policy)
    return operate.set_schedule(name, _rule(cron, words), job, policy, by=by, reason=reason)


def _rule(cron: str | None, words: ScheduleOptions) -> Rule:
    _check_words(words)
    tz = words.get("tz")
    if isinstance(tz, ZoneInfo):
        if tz.key is None:  # made from a file
            raise JobRejected('this ZoneInfo has no name, which workers need; use the name of one, such as "Europe/Berlin"')
        tz = tz.key
    return Rule(cron, tz, seconds(words.get("every")), words.get("at"))


def _policy(words: ScheduleOptions) -> Policy:
    window, jitter = seconds(words.get("catch_up_seconds")), seconds(words.get("jitter"))
    return Policy(words.get("catch_up"), window, words.get("overlap"), jitter, words.get("tick_arg"))


def _check_words(words: ScheduleOptions) -> None:
    known = ScheduleOptions.__annotations__.keys()
    unknown = sorted(words.keys() - known)
    if not unknown:
        return
    if unknown[0] in TaskOptions.__annotations__:
        raise JobRejected(f"{unknown[0]} is an option of the task, not of its schedule: @app.task({unknown[0]}=…)")
    raise JobRejected(f"unknown option {', '.join(unknown)}; the options are {', '.join(sorted(known))}")


def _names_before(was: Any) -> str | list[str] | None:
    if was is None:
        return None
    names = list(was) if isinstance(was, Sequence) and not isinstance(was, str | bytes) else [was]
    for name in names:
        check_text("was, the name of a schedule before,", "" if name is None else name, NAME_LENGTH_MAX)
    return was if isinstance(was, str) else names or None


def _check_arguments(args: Any, kwargs: Any) -> None:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise JobRejected(f"args must be a list of arguments; write args=({args!r:.60},)")
    if kwargs is not None and (not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs)):
        raise JobRejected(f'kwargs must be arguments by name, such as {{"region": "eu"}}, not {kwargs!r:.60}')


def _named(name: str) -> str:
    check_name("the name of a schedule", name, NAME_LENGTH_MAX)
    return name


def _bound(job: Any) -> Submission:
    if isinstance(job, Task):
        raise JobRejected(f"a schedule needs a job, not task {job.name}; bind its arguments: {job.name}.bind(…)")
    if not isinstance(job, Submission):
        raise JobRejected(f"a schedule needs a job, such as task.bind(…), not {job!r:.60}")
    return job


def _schedulable(job: Submission, policy: Policy) -> Submission:
    own = [name for name in _OF_ONE_JOB if getattr(job, name) is not None]
    if own:
        raise JobRejected(
            f"the job of a schedule cannot have {', '.join(own)} (task {job.task}): every tick makes one at its own time"
        )
    if policy.jitter_seconds:
        unique = job.unique if isinstance(job.unique, dict) else {}
        if unique.get("debounce") is not None:
            raise JobRejected(f"task {job.task} has a debounce, which is its delay: its schedule cannot have a jitter")
        if job.expires_seconds is not None and job.expires_seconds <= policy.jitter_seconds:
            raise JobRejected(
                f"a job of task {job.task} may expire before it runs: it expires after {job.expires_seconds:g} s, and the"
                f" jitter of its schedule is {policy.jitter_seconds:g} s; make the jitter shorter"
            )
    return job


def _ticking(app: Databases, job: Submission, argument: str | None) -> Submission:
    """A group or unique key that the task made from the tick's argument is to be that of each tick."""
    task = app.tasks.get(job.task)
    if task is None or argument is None:
        return job
    given, other = jsontext.decode_args(job.args), replace(job)
    task.ticking(other, argument)
    # What the caller has named instead stays.
    if other.group != job.group and task.filled_group(given) != job.group:
        other.group = job.group
    if other.unique != job.unique and task.filled_unique(given) != job.unique:
        other.unique = job.unique
    return other


def _found(name: str, line: ScheduleLine | None) -> ScheduleLine:
    if line is None:
        raise ScheduleNotFound(
            f'no schedule named "{name}"; one of the code is there once a worker with it has started, or by app.declare()'
        )
    return line
