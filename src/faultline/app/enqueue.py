"""Enqueue jobs: many at once, by the name of their task, and as a part of a caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Unpack

from faultline import values
from faultline.app import tracing
from faultline.app.enqueue_in_session import JoinedApp, session_of
from faultline.app.handle import JobHandle
from faultline.attempt.options import Options, TaskOptions, check_options, check_text
from faultline.attempt.unawaited import must_await
from faultline.core import events
from faultline.core.bounds import TASK_LENGTH_MAX
from faultline.core.errors import JobRejected
from faultline.core.model import Submission
from faultline.flow.usage_errors import check_named, warn_in_event_loop
from faultline.store import verbs

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    from faultline.app.enqueue_in_session import AnySession
    from faultline.app.handle import Looks
    from faultline.app.hooks import HookTable
    from faultline.app.tasks import Task
    from faultline.core.ids import Ids
    from faultline.core.model import Enqueued
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.database_facts import Facts
    from faultline.store.external_sessions import AsyncJoined, Joined
    from faultline.store.statement import Statement

_BATCH_JOBS_MAX = 2_000
_BATCH_BYTES_MAX = 8 * 1024 * 1024


class Submitting:
    """The part of an application that enqueues jobs."""

    tasks: dict[str, Task[..., Any]]
    enqueued: Counter[str]
    hooks: HookTable
    _ids: Ids

    if TYPE_CHECKING:

        def _has_enqueued(self, jobs: Sequence[Submission], handles: Sequence[JobHandle[Any]]) -> None: ...
        @property
        def database(self) -> Database: ...
        @property
        def async_database(self) -> AsyncDatabase: ...
        def returned_by(self, task: str) -> Any: ...

    def using(self, session: AnySession) -> JoinedApp:
        """Enqueue, publish and signal in the transaction of your session: `app.using(session).enqueue_many(…)`.

        What it does exists once that transaction commits, and never if it is rolled back. The timeouts are the session's.

        :param session: A session or connection of psycopg, asyncpg, psycopg2, SQLAlchemy or Django.
        """
        return JoinedApp(self, session_of(session))

    def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[TaskOptions]) -> JobHandle[Any]:
        """Enqueue a job by the name of its task, whose code may be in another program: `app.enqueue("charge", {"id": 42})`.

        :param task: The name of the task. If it is registered here, its arguments are checked and its options apply.
        :param args: The arguments by name.
        :param options: How the job is stored: see `TaskOptions`.
        """
        return self.enqueue_many([self._by_name(task, args, options)])[0]

    @must_await
    async def aenqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[TaskOptions]
    ) -> JobHandle[Any]:
        """`enqueue` for async programs."""
        return (await self.aenqueue_many([self._by_name(task, args, options)]))[0]

    def enqueue_many(self, submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        """Enqueue many jobs, all or none: `app.enqueue_many(charge.bind(order) for order in orders)`.

        :param submissions: Jobs as `task.bind(…)` makes them.
        """
        warn_in_event_loop("enqueue")
        with tracing.enqueuing(_bound(submissions)) as traced:
            jobs, positions = _in_key_order(traced)
            answers: list[list[Enqueued]] = []
            if jobs:
                answers = self.database.run_all(self._statements(jobs, self.database.facts_and_time()))
            return self._handles(jobs, answers, positions)

    @must_await
    async def aenqueue_many(self, submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        """`enqueue_many` for async programs."""
        with tracing.enqueuing(_bound(submissions)) as traced:
            jobs, positions = _in_key_order(traced)
            answers: list[list[Enqueued]] = []
            if jobs:
                statements = self._statements(jobs, await self.async_database.facts_and_time())
                answers = await self.async_database.run_all(statements)
            return self._handles(jobs, answers, positions)

    def _enqueue_in(self, session: Joined, submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        """`enqueue_many` in the transaction of a session."""
        with tracing.enqueuing(_bound(submissions)) as traced:
            jobs, positions = _in_key_order(traced)
            split = batches(jobs)
            session.refuse_halves(len(split))
            answers = [session.run(verbs.enqueue_many(batch, appears_late=True)) for batch in split]
            return self._handles(jobs, answers, positions)

    async def _aenqueue_in(self, session: AsyncJoined, submissions: Iterable[Submission]) -> list[JobHandle[Any]]:
        """`_enqueue_in` for async sessions."""
        with tracing.enqueuing(_bound(submissions)) as traced:
            jobs, positions = _in_key_order(traced)
            split = batches(jobs)
            session.refuse_halves(len(split))
            answers = [await session.run(verbs.enqueue_many(batch, appears_late=True)) for batch in split]
            return self._handles(jobs, answers, positions)

    def _by_name(self, task: str, args: Mapping[str, Any] | None, options: TaskOptions) -> Submission:
        """A job by the name of its task."""
        check_text("the name of a task", task, TASK_LENGTH_MAX)
        given: Any = {} if args is None else args
        check_named(f"task {task}", given)
        known = self.tasks.get(task)
        argument = next((word for word in options if known is not None and word in known.signature.parameters), None)
        if argument is not None and argument not in TaskOptions.__annotations__:
            raise JobRejected(f'the arguments of task {task} come as a dict: app.enqueue("{task}", {{"{argument}": …}})')
        if known is not None:
            return (known.options(**options) if options else known).bind(**given)
        near = get_close_matches(task, self.tasks, n=1, cutoff=0.8)
        if near:
            events.warn(
                f"no task {task} is registered here; did you mean {near[0]}? It is enqueued for a worker that has {task}"
            )
        if "unique" in options:
            raise JobRejected(f"task {task} is not registered in this program, which unique= needs to know its arguments")
        check_options(options)
        text = values.args_text(dict(given), f"arguments of task {task}")
        return Submission(task, text, **Options(**options).submitted())

    def _statements(self, submissions: list[Submission], facts: Facts) -> list[Statement[list[Enqueued]]]:
        """Ids are made here, so that a submission can be sent again after a lost answer and creates each job once."""
        for position, submission in enumerate(submissions, start=1):
            # A character has at most four bytes, so most arguments need not be encoded to be measured.
            if len(submission.args) * 4 <= facts.args_bytes_max:
                continue
            size = len(submission.args.encode())
            if size > facts.args_bytes_max:
                raise JobRejected(
                    f"job {position} of {len(submissions)} (task {submission.task}) is refused: its args have {size} bytes, "
                    f"more than the limit of {facts.args_bytes_max}. Store large values elsewhere and pass a reference"
                )
        return [verbs.enqueue_many(batch, self._ids) for batch in batches(submissions)]

    def _handles(
        self, jobs: Sequence[Submission], answers: Sequence[list[Enqueued]], positions: Sequence[int]
    ) -> list[JobHandle[Any]]:
        """Handles in the caller's order."""
        enqueued = [one for answer in answers for one in answer]
        self.enqueued.update([job.queue or "default" for job, one in zip(jobs, enqueued, strict=True) if one.created])
        if events.are_detailed():
            for one in enqueued:
                events.emit_detail("job_enqueued", job_id=one.job_id, created=one.created)
        app: Looks = self  # type: ignore[assignment]  # the whole application
        handles: list[JobHandle[Any]] = [JobHandle(app, job_id, created=created) for job_id, created in enqueued]
        read = {name: found for name in {job.task for job in jobs} if (found := self.returned_by(name)) is not Any}
        for handle, job in zip(handles, jobs, strict=True) if read else ():
            handle.reading(read.get(job.task, Any))
        if self.hooks.on_enqueue:
            self._has_enqueued(jobs, handles)
        if isinstance(positions, range):
            return handles
        return [handle for _, handle in sorted(zip(positions, handles, strict=True), key=lambda pair: pair[0])]


def _bound(submissions: Iterable[Submission]) -> list[Submission]:
    """The jobs to enqueue. A task, or what a task returned when it was called, is not one."""
    if not isinstance(submissions, Iterable):  # callers without a type checker
        raise JobRejected(
            f"enqueue_many takes a list of jobs, not {submissions!r:.80}; for one job, write task.enqueue(...)"
        )
    found = list(submissions)
    for one in found:
        if not isinstance(one, Submission):
            raise JobRejected(f"enqueue_many takes jobs as task.bind(...) makes them, not {one!r:.80}")
    return found


def _in_key_order(submissions: list[Submission]) -> tuple[list[Submission], Sequence[int]]:
    """The jobs in the order to send them, and the position of each in the caller's order.

    Each statement locks its keys in order. A submission of several statements must do so as a whole, or two submissions with
    the same keys in opposite order deadlock.
    """
    positions = range(len(submissions))
    if len(submissions) <= _BATCH_JOBS_MAX or all(job.idempotency_key is None for job in submissions):
        return submissions, positions
    sorted_positions = sorted(positions, key=lambda n: submissions[n].idempotency_key or "")
    return [submissions[n] for n in sorted_positions], sorted_positions


def batches(submissions: list[Submission]) -> list[list[Submission]]:
    """Split a submission by number and bytes: one statement must not block the server, nor exceed the limits of JSON."""
    split: list[list[Submission]] = [[]]
    size = 0
    for submission in submissions:
        size += len(submission.args)
        if split[-1] and (len(split[-1]) >= _BATCH_JOBS_MAX or size > _BATCH_BYTES_MAX):
            split.append([])
            size = len(submission.args)
        split[-1].append(submission)
    return split if submissions else []
