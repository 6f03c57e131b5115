"""The decorators of an application: `@app.task` and `@app.step`. What is wrong with a declaration raises where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from faultline.app.options import Options
from faultline.app.steps import Retries, Step, StepDecorator
from faultline.app.tasks import Task
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from faultline.app.blocking_job import BlockingJob
    from faultline.app.job import Job
    from faultline.app.options import Duration, TaskOptions
    from faultline.app.outcomes import Again, Cancel, NoOutcome, Retry, Snooze
    from faultline.app.tasks import Enqueues

P = ParamSpec("P")
R = TypeVar("R")
#: A result without an outcome in it. Of one that has outcomes, a type checker would join the rest to their common base.
Whole = TypeVar("Whole", bound="NoOutcome | None")


class TaskDecorator(Protocol):
    """The decorator `@app.task(...)`: turns a function into a task and keeps the types of its parameters and result.

    The result is what it returns without `Retry`, `Snooze`, `Cancel` and `Again`: no job ends with one of these as its
    result.
    """

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], Awaitable[Whole]], /) -> Task[P, Whole]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[BlockingJob, P], Whole], /) -> Task[P, Whole]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], Awaitable[R | Retry | Snooze | Cancel | Again]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[BlockingJob, P], R | Retry | Snooze | Cancel | Again], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[Whole]], /) -> Task[P, Whole]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R | Retry | Snooze | Cancel | Again]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Whole], /) -> Task[P, Whole]: ...
    @overload
    def __call__(self, fn: Callable[P, R | Retry | Snooze | Cancel | Again], /) -> Task[P, R]: ...


class Decorators:
    """The part of an application that registers tasks and makes steps."""

    tasks: dict[str, Task[..., Any]]

    if TYPE_CHECKING:

        def _route(self, task: Task[..., Any]) -> None: ...

    @overload
    def task(self, fn: Callable[Concatenate[Job, P], Awaitable[Whole]], /) -> Task[P, Whole]: ...
    @overload
    def task(self, fn: Callable[Concatenate[BlockingJob, P], Whole], /) -> Task[P, Whole]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Job, P], Awaitable[R | Retry | Snooze | Cancel | Again]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[BlockingJob, P], R | Retry | Snooze | Cancel | Again], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Awaitable[Whole]], /) -> Task[P, Whole]: ...
    @overload
    def task(self, fn: Callable[P, Awaitable[R | Retry | Snooze | Cancel | Again]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Whole], /) -> Task[P, Whole]: ...
    @overload
    def task(self, fn: Callable[P, R | Retry | Snooze | Cancel | Again], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        backoff: Callable[[int], float] | None = None,
        **words: Unpack[TaskOptions],
    ) -> TaskDecorator: ...
    def task(  # type: ignore[misc]
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        backoff: Callable[[int], float] | None = None,
        **words: Any,
    ) -> Any:  # see the overloads
        """Register a function as a task: `@app.task` or `@app.task(queue="mail", max_attempts=3)`.

        :param fn: The function. A plain `def` runs in a thread, an `async def` on the event loop.
        :param name: The name under which jobs are stored. Default: the function's name.
        :param timeout: How long one attempt may take. Default: no limit.
        :param backoff: Called with the number of the failed attempt, from 1; returns the seconds to wait before the next.
            Default: 1 second, doubled with each attempt.
        :param words: How jobs of the task are stored: see `TaskOptions`.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            own_name = getattr(function, "__qualname__", None)
            if name is None and own_name is None:
                raise ConfigError(f"{function!r} has no name; give the task one with name=...")
            task_name = name or str(own_name).rsplit("<locals>.", 1)[-1]
            if task_name in self.tasks:
                raise ConfigError(
                    f"a task named {task_name} is already registered; give this one another name with name=..."
                )
            group, others = words.get("group"), {word: given for word, given in words.items() if word != "group"}
            app = cast("Enqueues", self)
            plain: Task[..., Any] = Task(app, function, task_name, Options(), timeout=timeout, backoff=backoff, group=group)
            task = plain.options(**others)
            self._route(task)
            self.tasks[task_name] = task
            return task

        return register if fn is None else register(fn)

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self, *, name: str | None = None, retries: Retries | int = 0, timeout: Duration | None = None
    ) -> StepDecorator: ...
    def step(  # type: ignore[misc]
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retries: Retries | int = 0,
        timeout: Duration | None = None,
    ) -> Any:  # see the overloads
        """Make a function a step of flows: `@app.step` or `@app.step(retries=3, timeout=60)`. Run it with `job.do`.

        :param fn: The function. Its result is read again by its annotation.
        :param name: The name by which jobs remember it. Default: the function's name.
        :param retries: How often it is tried again when it fails, which uses up no attempt of the job.
        :param timeout: How long one try may take. Default: no limit.
        """

        def make(function: Callable[..., Any]) -> Step[..., Any]:
            return Step(function, name=name, retries=retries, timeout=timeout)

        return make if fn is None else make(fn)
