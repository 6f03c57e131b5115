"""Tasks that take many jobs at once: `@app.batch_task(size=100)`. Each job has its own lease, attempts and outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from faultline.app.batch_functions import Batch, of_one, parameters_of
from faultline.app.tasks import is_async
from faultline.attempt.options import check_seconds, seconds
from faultline.core.errors import ConfigError
from faultline.core.settings import whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from faultline.app.tasks import Task
    from faultline.attempt.attempt import Attempt
    from faultline.attempt.backoff import Backoff
    from faultline.attempt.options import Duration, TaskOptions
    from faultline.attempt.outcomes import AnOutcome

T = TypeVar("T")
R = TypeVar("R")

_SIZE_MAX = 10_000
_WAIT_SECONDS_MAX = 3600.0


class BatchDecorator(Protocol):
    """The decorator `@app.batch_task(...)`: a function of a list becomes a task that is enqueued with one item of it.

    The result of a job is an item of what it returns, without exceptions and outcomes: these are not stored as results.
    """

    @overload
    def __call__(self, fn: Callable[[list[T]], Awaitable[None]], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], Awaitable[Sequence[R | Exception | AnOutcome]]], /) -> Task[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[Attempt], list[T]], Awaitable[None]], /) -> Task[[T], None]: ...
    @overload
    def __call__(
        self, fn: Callable[[list[Attempt], list[T]], Awaitable[Sequence[R | Exception | AnOutcome]]], /
    ) -> Task[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], None], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], Sequence[R | Exception | AnOutcome]], /) -> Task[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[Attempt], list[T]], None], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, fn: Callable[[list[Attempt], list[T]], Sequence[R | Exception | AnOutcome]], /) -> Task[[T], R]: ...


class Batches:
    """The part of an application that registers tasks for batches."""

    def batch_task(
        self,
        *,
        size: int,
        wait: Duration = 0.1,
        name: str | None = None,
        timeout: Duration | None = None,
        backoff: Backoff | Callable[[int], Duration] | None = None,
        **words: Unpack[TaskOptions],
    ) -> BatchDecorator:
        """Register a function that runs many jobs at once: `@app.batch_task(size=100)`.

        The function takes a list with the argument of each job, after a list of the jobs (`Attempt`) if it takes two. It
        returns a list with the result of each, in the same order, or None. In place of a result, an exception or an
        outcome such as `Retry()` is that of one job. What it raises is raised for all.

        :param size: The most jobs of one call. A queue that runs fewer at once makes smaller batches.
        :param wait: How long the first job of a batch waits for others.
        :param name: The name under which jobs are stored. Default: the function's name.
        :param timeout: How long one call may take. Default: no limit.
        :param backoff: As for `task`.
        :param words: How jobs of the task are stored: see `TaskOptions`.
        """
        check_seconds("wait", wait, 0.0, _WAIT_SECONDS_MAX)
        if whole("size of a batch", size) > _SIZE_MAX:
            raise ConfigError(f"size of a batch is {size}; it must be at most {_SIZE_MAX}")

        def register(fn: Callable[..., Any]) -> Task[..., Any]:
            app: Any = self
            named = app._new_name(fn, name)  # noqa: SLF001 - it is a part of the application
            takes_jobs, parameter = parameters_of(fn)
            batch = Batch(fn, is_async(fn, named), takes_jobs, parameter.name, size, seconds(wait) or 0.0)
            task: Task[..., Any] = app.task(name=named, timeout=timeout, backoff=backoff, **words)(of_one(batch, parameter))
            task.batch, task.is_async = batch, False  # it does not run by itself on the event loop
            return task

        decorator: Any = register
        return decorator  # type: ignore[no-any-return]  # see the overloads
