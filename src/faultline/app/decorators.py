"""What an application declares: tasks, steps and types. What is wrong with a declaration raises where it stands."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Never, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from faultline.app.tasks import MYPY, Task
from faultline.attempt.backoff import rules_of
from faultline.attempt.options import Options
from faultline.core.errors import ConfigError, declaring
from faultline.flow.step_functions import Retries, Step, StepDecorator
from faultline.values import kinds, reading

if TYPE_CHECKING:
    import builtins
    from collections.abc import Awaitable, Callable, Coroutine

    from faultline.app.blocking_job import BlockingJob
    from faultline.app.job import Job
    from faultline.app.processes import Processes
    from faultline.app.tasks import DecoratedTask, Enqueues, Returned
    from faultline.attempt.backoff import Backoff, Exceptions
    from faultline.attempt.options import Duration, TaskOptions
    from faultline.attempt.outcomes import AnOutcome, NoOutcome

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: A result without an outcome in it. Of one that has outcomes, a type checker would join the rest to their common base.
Whole = TypeVar("Whole", bound="NoOutcome | None")


class TaskDecorator(Protocol):
    """The decorator `@app.task(...)`: turns a function into a task and keeps the types of its parameters and result.

    The result is what it returns without `Retry`, `Fail`, `Snooze`, `Cancel` and `ContinueAsNew`: no job ends with one of
    these as its result.
    """

    if not MYPY:
        # A function that returns Any fits the overloads of async ones, which stand first.
        @overload
        def __call__(self, fn: Callable[Concatenate[BlockingJob, P], Never], /) -> DecoratedTask[P, Any, Any]: ...
        @overload
        def __call__(self, fn: Callable[P, Never], /) -> DecoratedTask[P, Any, Any]: ...

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], Awaitable[Whole]], /
    ) -> DecoratedTask[P, Whole, Coroutine[Any, Any, Whole]]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[BlockingJob, P], Whole], /) -> DecoratedTask[P, Whole, Returned[Whole]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], Awaitable[R | AnOutcome]], /
    ) -> DecoratedTask[P, R, Coroutine[Any, Any, R | AnOutcome]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[BlockingJob, P], R | AnOutcome], /
    ) -> DecoratedTask[P, R, Returned[R | AnOutcome]]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[Whole]], /) -> DecoratedTask[P, Whole, Coroutine[Any, Any, Whole]]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Awaitable[R | AnOutcome]], /
    ) -> DecoratedTask[P, R, Coroutine[Any, Any, R | AnOutcome]]: ...
    @overload
    def __call__(self, fn: Callable[P, Whole], /) -> DecoratedTask[P, Whole, Returned[Whole]]: ...
    @overload
    def __call__(self, fn: Callable[P, R | AnOutcome], /) -> DecoratedTask[P, R, Returned[R | AnOutcome]]: ...


class Decorators:
    """The part of an application that registers tasks and types, and makes steps."""

    tasks: dict[str, Task[..., Any]]

    if TYPE_CHECKING:

        def _route(self, task: Task[..., Any]) -> None: ...

    if not MYPY:
        # A function that returns Any fits the overloads of async ones, which stand first.
        @overload
        def task(self, fn: Callable[Concatenate[BlockingJob, P], Never], /) -> DecoratedTask[P, Any, Any]: ...
        @overload
        def task(self, fn: Callable[P, Never], /) -> DecoratedTask[P, Any, Any]: ...

    @overload
    def task(
        self, fn: Callable[Concatenate[Job, P], Awaitable[Whole]], /
    ) -> DecoratedTask[P, Whole, Coroutine[Any, Any, Whole]]: ...
    @overload
    def task(self, fn: Callable[Concatenate[BlockingJob, P], Whole], /) -> DecoratedTask[P, Whole, Returned[Whole]]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[Job, P], Awaitable[R | AnOutcome]], /
    ) -> DecoratedTask[P, R, Coroutine[Any, Any, R | AnOutcome]]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[BlockingJob, P], R | AnOutcome], /
    ) -> DecoratedTask[P, R, Returned[R | AnOutcome]]: ...
    @overload
    def task(self, fn: Callable[P, Awaitable[Whole]], /) -> DecoratedTask[P, Whole, Coroutine[Any, Any, Whole]]: ...
    @overload
    def task(
        self, fn: Callable[P, Awaitable[R | AnOutcome]], /
    ) -> DecoratedTask[P, R, Coroutine[Any, Any, R | AnOutcome]]: ...
    @overload
    def task(self, fn: Callable[P, Whole], /) -> DecoratedTask[P, Whole, Returned[Whole]]: ...
    @overload
    def task(self, fn: Callable[P, R | AnOutcome], /) -> DecoratedTask[P, R, Returned[R | AnOutcome]]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        backoff: Backoff | Callable[[int], Duration] | None = None,
        retry_on: Exceptions | None = None,
        give_up_on: Exceptions | None = None,
        executor: Literal["process"] | Processes | None = None,
        **words: Unpack[TaskOptions],
    ) -> TaskDecorator: ...
    def task(  # type: ignore[misc]
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        backoff: Backoff | Callable[[int], Duration] | None = None,
        retry_on: Exceptions | None = None,
        give_up_on: Exceptions | None = None,
        executor: Literal["process"] | Processes | None = None,
        **words: Any,
    ) -> Any:  # see the overloads
        """Register a function as a task: `@app.task` or `@app.task(queue="mail", max_attempts=3)`.

        :param fn: The function. A plain `def` runs in a thread, an `async def` on the event loop.
        :param name: The name under which jobs are stored. Default: the function's name.
        :param timeout: How long one attempt may take. Default: no limit.
        :param backoff: How long to wait after a failed attempt: a `Backoff`, or a function of the number of the attempt that
            failed, from 1. Default: `Backoff.exponential()`: 2 seconds, twice as long each time, up to an hour, give or
            take a quarter.
        :param retry_on: Only these exceptions are followed by another attempt; any other one fails the job. An attempt that
            timed out is a `TimeoutError`. Default: all are.
        :param give_up_on: These exceptions fail the job, whatever attempts it has left.
        :param executor: `"process"` runs it in a process of its own, for tasks that compute: see `Processes`.
        :param words: How jobs of the task are stored: see `TaskOptions`.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            task_name = self._new_name(function, name)
            group, others = words.get("group"), {word: given for word, given in words.items() if word != "group"}
            with declaring(f"task {task_name}"):
                plain: Task[..., Any] = Task(
                    cast("Enqueues", self),
                    function,
                    task_name,
                    Options(),
                    timeout=timeout,
                    backoff=backoff,
                    group=group,
                    rules=rules_of(retry_on, give_up_on, task_name),
                    executor=executor,
                )
                task = plain.options(**others)
            self._route(task)
            self.tasks[task_name] = task
            return task

        return register if fn is None else register(fn)

    def _new_name(self, function: Callable[..., Any], name: str | None) -> str:
        """The name of a task that is registered now."""
        _check_function("@app.task", function)
        own_name = getattr(function, "__qualname__", None)
        if name is None and own_name is None:
            raise ConfigError(f"{function!r} has no name; give the task one with name=...")
        found = str(own_name).rsplit("<locals>.", 1)[-1] if name is None else name
        if found in self.tasks:
            raise ConfigError(f"a task named {found} is already registered; give this one another name with name=...")
        return found

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retries: Retries | int = 0,
        timeout: Duration | None = None,
        raises: Exceptions | None = None,
    ) -> StepDecorator: ...
    def step(  # type: ignore[misc]
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retries: Retries | int = 0,
        timeout: Duration | None = None,
        raises: Exceptions | None = None,
    ) -> Any:  # see the overloads
        """Make a function a step of flows: `@app.step` or `@app.step(retries=3, timeout=60)`. Run it with `job.do`.

        :param fn: The function. Its result is read again by its annotation.
        :param name: The name by which jobs remember it. Default: the function's name.
        :param retries: How often it is tried again when it fails, which uses up no attempt of the job.
        :param timeout: How long one try may take. Default: no limit.
        :param raises: Exceptions that are an answer: they are not tried again, and a program gets them as themselves, with
            their arguments and attributes, in every run. Any other one becomes `StepFailed`.
        """

        def make(function: Callable[..., Any]) -> Step[..., Any]:
            _check_function("@app.step", function)
            return Step(function, name=name, retries=retries, timeout=timeout, raises=raises)

        return make if fn is None else make(fn)

    def returned_by(self, task: str) -> Any:
        """What the results of a task are read as, by its name; Any if they are JSON, or it is not of this application."""
        found = self.tasks.get(task)
        return found.returns if found is not None and found.results.are_read else Any

    def type(self, kind: builtins.type[T], *, store: Callable[[T], Any], read: Callable[[Any], T]) -> None:
        """Say how values of a class of your own are stored and read: `app.type(Money, store=str, read=Money.parse)`.

        It holds for the whole program: for all its applications, and for arguments, results, steps and signals.

        :param kind: The class. An argument of a class that inherits from it is refused: it would arrive as one of this.
        :param store: Returns what to store for a value: JSON, or what is stored as such, a date say.
        :param read: Returns the value for what was stored, as JSON has it. What it raises says that it does not fit.
        """
        kinds.register(kind, store, read)
        reading.forget()
        for task in self.tasks.values():
            task.forget_types()


def _check_function(what: str, function: object) -> None:
    """A task, a step and a class can be called, but what a worker runs is a function."""
    if not callable(function):
        raise ConfigError(f"{what} takes a function, not {function!r:.80}; options go by name: {what}(name=...)")
    if isinstance(function, Task | Step):
        kind = "task" if isinstance(function, Task) else "step"
        raise ConfigError(f"{what} takes a function, and {function.name} is a {kind} already; give it {function.name}.fn")
    if inspect.isclass(function):
        raise ConfigError(f"{what} takes a function, and {function.__name__} is a class; write a function that makes one")
