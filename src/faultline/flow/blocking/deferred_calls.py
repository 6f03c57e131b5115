# Generated from src/faultline/flow/job_calls.py by `make generate`: change that file, not this one.
"""The calls that a program makes through its job. Each has its number from when it is made, and runs when it is awaited."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from faultline.attempt.attempt import check_step_name
from faultline.attempt.options import check_seconds, id_of, seconds
from faultline.core import bounds
from faultline.core.bounds import DELAY_SECONDS_MAX
from faultline.core.errors import ConfigError, LimitReached
from faultline.flow.blocking.children import Called, Watched
from faultline.flow.blocking.gather import Bounded, begun_of
from faultline.flow.blocking.steps import MISSING, Asked, Atomic, Stepped
from faultline.flow.usage_errors import (
    check_atomic,
    check_concurrency,
    check_given,
    check_items,
    check_kind,
    check_policy,
    check_sleep,
    check_step,
    check_task,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from faultline.app.handle import JobHandle
    from faultline.attempt.blocking_transaction import BlockingTransaction
    from faultline.attempt.options import Duration
    from faultline.flow.step_functions import Step
    from faultline.flow.task_protocol import CallableTask, OneArgumentTask
    from faultline.history.calls import BlockingCall, Won

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")


class DeferredCalls:
    """Makes calls for `job.gather` and `job.race`: `job.later.do(step)` is as `job.do(step)`, and does not run yet."""

    def __init__(
        self, job_id: UUID, make: Callable[..., BlockingCall[Any]], beside: Callable[..., tuple[BlockingCall[Any], ...]]
    ) -> None:
        self.id = job_id
        self._make = make
        self._beside = beside

    def do(self, step: Step[P, R], *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R]:
        """Run a step once, with its own tries, and remember its result. Raises `StepFailed` when its tries are used up.

        :param step: What to run, made by `@app.step`.
        :param args: Positional arguments of the step. A later run must give the same ones.
        :param kwargs: Named arguments of the step.
        """
        check_step(self.id, "job.do", step)
        check_given(args, kwargs)
        return self._make("step", step.name, (args, kwargs), Stepped(step, args, kwargs))

    @overload
    def atomic(
        self, name: str, function: Step[Concatenate[BlockingTransaction, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> BlockingCall[R]: ...
    @overload
    def atomic(
        self, name: str, function: Callable[Concatenate[BlockingTransaction, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> BlockingCall[R]: ...
    def atomic(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> BlockingCall[Any]:
        """Run a function in the job's transaction and remember its result there: its writes exist exactly once.

        :param name: Of this call. 1 to 200 characters.
        :param function: Called with the transaction, and then the arguments. A step that declares exceptions may raise them.
        :param args: Positional arguments of the function.
        :param kwargs: Named arguments of the function.
        """
        check_step_name(name)
        check_atomic(self.id, function)
        return self._make("atomic", name, (args, kwargs), Atomic(function, args, kwargs))

    def sleep(self, duration: Duration) -> BlockingCall[None]:
        """Wait, without a lease and a slot of the worker.

        :param duration: How long, from when the job first comes here.
        """
        check_sleep(duration)
        return self._make("sleep", "sleep", None, (float(seconds(duration) or 0.0), None))

    def sleep_until(self, time: datetime) -> BlockingCall[None]:
        """Wait until then, without a lease and a slot of the worker.

        :param time: With a time zone. One that is past is over at once.
        """
        if not isinstance(time, datetime) or time.utcoffset() is None:  # type: ignore[redundant-expr]  # without a type checker
            raise ConfigError(f"job.sleep_until takes a datetime with a time zone, not {time!r}")
        if time.year >= bounds.LAST_YEAR:
            raise ConfigError(
                f"job.sleep_until takes a time before the year {bounds.LAST_YEAR}, not {time.isoformat()}; to wait without a"
                " limit, wait for a signal"
            )
        # Python could not read an earlier one again in every time zone.
        past = datetime(bounds.FIRST_YEAR, 1, 1, tzinfo=UTC)
        return self._make("sleep", "sleep until", None, (None, max(time, past).isoformat()))

    @overload
    def receive(
        self, name: str, kind: type[T], *, timeout: Duration | None = None, fresh: bool | None = None
    ) -> BlockingCall[T]: ...
    @overload
    def receive(
        self, name: str, kind: type[T], *, timeout: Duration | None = None, default: D, fresh: bool | None = None
    ) -> BlockingCall[T | D]: ...
    @overload
    def receive(
        self,
        name: str,
        kind: object = ...,
        *,
        timeout: Duration | None = None,
        default: Any = ...,
        fresh: bool | None = None,
    ) -> BlockingCall[Any]: ...
    def receive(
        self,
        name: str,
        kind: Any = Any,
        *,
        timeout: Duration | None = None,
        default: Any = MISSING,
        fresh: bool | None = None,
    ) -> BlockingCall[Any]:
        """Wait for the next signal of a name, without a lease and a slot, and return its payload.

        :param name: Of the signal. 1 to 200 characters.
        :param kind: What the payload is read as: a JSON type, a dataclass, a pydantic model, a list or union of these.
        :param timeout: How long to wait, from when the job first comes here. Default: 30 days.
        :param default: Returned after the timeout. Without one, `SignalTimeout` is raised.
        :param fresh: Only a signal that was sent after the job first came here, or to this very call: an answer that came
            too late for an earlier question is none to this one. Default: True if there is a timeout.
        """
        check_step_name(name, "the name of a signal")
        check_kind(self.id, name, kind)
        check_seconds("timeout", timeout, -DELAY_SECONDS_MAX, DELAY_SECONDS_MAX)
        limit = None if timeout is None else max(0.0, float(seconds(timeout) or 0.0))
        return self._make("signal", name, None, Asked(kind, limit, default, limit is not None if fresh is None else fresh))

    def call(self, task: CallableTask[P, R], *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R]:
        """Enqueue a job once, as a child, and wait for its result. Raises `ChildFailed`.

        :param task: The task of the child.
        :param args: Positional arguments of the task.
        :param kwargs: Named arguments of the task.
        """
        check_task(f"job {self.id}: ", "job.call", task)
        check_given(args, kwargs)
        job = task.bind(*args, **kwargs)
        what = Called([job], "raise", task.returns, alone=True)
        return self._make("children", job.task, [job], what)

    @overload
    def map(
        self,
        task: OneArgumentTask[T, R],
        items: Iterable[T],
        *,
        on_failure: Literal["raise", "fast"] = "raise",
        concurrency: int | None = None,
    ) -> BlockingCall[list[R]]: ...
    @overload
    def map(
        self, task: OneArgumentTask[T, R], items: Iterable[T], *, on_failure: Literal["keep"], concurrency: int | None = None
    ) -> BlockingCall[list[R | None]]: ...
    def map(
        self, task: OneArgumentTask[T, R], items: Iterable[T], *, on_failure: str = "raise", concurrency: int | None = None
    ) -> BlockingCall[Any]:
        """One child for each item, and their results in the order of the items. For very many, see `results`.

        :param task: Called with one item each.
        :param items: The items, at most 100,000. A later run must give the same ones.
        :param on_failure: When a child has failed: `raise` waits for all and raises `ChildFailed`, `fast` raises it at once,
            `keep` gives None as its result.
        :param concurrency: How many children may be enqueued and not ended, at least 1. They are enqueued in the order of
            the items, half as many at a time; after a failure that is raised, no more are. Default: all.
        """
        check_policy(on_failure)
        check_concurrency("job.map", concurrency)
        check_task(f"job {self.id}: ", "job.map", task)
        check_items(self.id, "job.map", items)
        jobs = task.bind_each(islice(items, bounds.CHILDREN_MAX + 1))
        if len(jobs) > bounds.CHILDREN_MAX:
            raise LimitReached(
                f"job {self.id}: job.map got more than {bounds.CHILDREN_MAX:,} items, the limit of one call. Nothing was"
                " enqueued. Map over lists of items, or let each child map over a part of them"
            )
        name = jobs[0].task if jobs else "nothing"
        called = Called(jobs, on_failure, task.returns)
        if concurrency is None or len(jobs) <= concurrency:
            return self._make("children", name, jobs, called)
        return self._make("branch", name, jobs, Bounded(called, concurrency))

    @overload
    def watch(self, job: JobHandle[R]) -> BlockingCall[R]: ...
    @overload
    def watch(self, job: UUID | str) -> BlockingCall[Any]: ...
    def watch(self, job: Any) -> BlockingCall[Any]:
        """Wait for a job that is not a child, and return its result. Raises `ChildFailed`.

        :param job: Its handle or id.
        """
        job_id = id_of(getattr(job, "id", job))
        return self._make("watch", "watch", (job_id,), Watched(job_id, getattr(job, "_returns", Any)))

    def enqueue(self, task: CallableTask[P, R], *args: P.args, **kwargs: P.kwargs) -> BlockingCall[UUID]:
        """Enqueue a job once, and return its id. It is not a child: nobody waits for it, and it ends by itself.

        :param task: The task of the job.
        :param args: Positional arguments of the task.
        :param kwargs: Named arguments of the task.
        """
        check_task(f"job {self.id}: ", "job.enqueue", task)
        check_given(args, kwargs)
        job = task.bind(*args, **kwargs)
        return self._make("detached", job.task, [job], Called([job], "raise", Any, alone=True))

    def branch(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R]:
        """A part of the program with calls of its own, to run beside others in `gather` or `race`.

        :param function: What to run. It makes its calls through the same job.
        :param args: Positional arguments of the function. A later run must give the same ones; what it has from elsewhere,
            as from the variables around it, is not compared.
        :param kwargs: Named arguments of the function.
        """
        begun = begun_of(function, args, kwargs)
        name = str(getattr(begun.fn, "__name__", "branch"))
        return self._make("branch", name, (begun.args, begun.kwargs), begun)

    def patched(self, name: str) -> BlockingCall[bool]:
        """Guard a change: True from where a job first comes to it with the new code, False where it ran the old code.

        :param name: Of the change. 1 to 200 characters.
        """
        check_step_name(name, "the name of a change")
        return self._make("patch", name)

    @overload
    def gather(
        self, a: BlockingCall[A], b: BlockingCall[B], /, *, concurrency: int | None = None
    ) -> BlockingCall[tuple[A, B]]: ...
    @overload
    def gather(
        self, a: BlockingCall[A], b: BlockingCall[B], c: BlockingCall[C], /, *, concurrency: int | None = None
    ) -> BlockingCall[tuple[A, B, C]]: ...
    @overload
    def gather(
        self,
        a: BlockingCall[A],
        b: BlockingCall[B],
        c: BlockingCall[C],
        e: BlockingCall[E],
        /,
        *,
        concurrency: int | None = None,
    ) -> BlockingCall[tuple[A, B, C, E]]: ...
    @overload
    def gather(self, *calls: BlockingCall[R], concurrency: int | None = None) -> BlockingCall[list[R]]: ...
    def gather(self, *calls: BlockingCall[Any], concurrency: int | None = None) -> BlockingCall[Any]:
        """Run calls beside each other, and return their results in order. The job waits once, for all that still wait.

        If one fails, its error is raised when each of the others has ended or waits.

        :param a: A call of this job.
        :param b: Likewise.
        :param c: Likewise.
        :param e: Likewise.
        :param calls: Calls of this job, and branches.
        :param concurrency: How many of them may have begun and not ended, at least 1. They begin in their order, and one
            that waits counts. Default: all.
        """
        check_concurrency("job.gather", concurrency)
        return self._make("gather", "gather", None, self._beside("job.gather", calls, concurrency))

    @overload
    def race(self, a: BlockingCall[A], b: BlockingCall[B], /) -> BlockingCall[Won[A | B]]: ...
    @overload
    def race(self, a: BlockingCall[A], b: BlockingCall[B], c: BlockingCall[C], /) -> BlockingCall[Won[A | B | C]]: ...
    @overload
    def race(self, *calls: BlockingCall[R]) -> BlockingCall[Won[R]]: ...
    def race(self, *calls: BlockingCall[Any]) -> BlockingCall[Any]:
        """Run calls beside each other, and return which of them ended first, and its result. The others are closed.

        First is what was over first by the database's record, also if nobody ran the job meanwhile: a sleep and a timeout
        count at their time, a signal when it was sent, a job when it ended. Of what is over at the same moment, the first
        argument wins. Here `receive` without a timeout has no limit.

        :param a: A call of this job.
        :param b: Likewise.
        :param c: Likewise.
        :param calls: Calls of this job, and branches.
        """
        if not calls:
            raise ConfigError(f"job {self.id}: job.race needs at least one call")
        return self._make("race", "race", None, self._beside("job.race", calls))
