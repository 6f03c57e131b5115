"""Put the program's middleware around its tasks, once, when the worker starts. Without middleware nothing is wrapped.

What a middleware raises is what the task raised; what it returns is what the task returned. It runs within the timeout of
the task, and is cancelled with it.
"""

from __future__ import annotations

import inspect
from copy import copy
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from faultline.attempt.current import current_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from faultline.app.tasks import Task
    from faultline.attempt.attempt import Attempt

    Middleware = Sequence[Callable[..., Any]]


class WrappedTasks(dict[str, "Task[..., Any]"]):
    """The tasks of an application with its middleware around them. Tasks that are registered later are wrapped then."""

    def __init__(self, tasks: dict[str, Task[..., Any]], middleware: Middleware) -> None:
        super().__init__()
        self._plain = tasks
        self._async = [one for one in middleware if inspect.iscoroutinefunction(one)]
        self._blocking = [one for one in middleware if not inspect.iscoroutinefunction(one)]

    def get(self, name: str, default: Any = None) -> Any:
        task = self._plain.get(name)
        if task is None:
            return default
        found = super().get(name)
        if found is None:
            self[name] = found = self._wrapped(task)
        return found

    def _wrapped(self, task: Task[..., Any]) -> Task[..., Any]:
        other = copy(task)
        if task.is_async:
            other.fn = around_async(task.fn, self._async, takes_job=task.takes_job)
        elif self._blocking:
            other.fn = around_blocking(task.fn, self._blocking, takes_job=task.takes_job)
        return other


def around_async(fn: Callable[..., Any], middleware: Middleware, *, takes_job: bool) -> Callable[..., Any]:
    @wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> Any:
        job = args[0] if takes_job else current_job()
        return await chained(job, partial(fn, *args, **kwargs), middleware)

    return call


def around_blocking(fn: Callable[..., Any], middleware: Middleware, *, takes_job: bool) -> Callable[..., Any]:
    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        job = args[0] if takes_job else current_job()
        return _chain(job, partial(fn, *args, **kwargs), middleware)()

    return call


def chained(job: Attempt | None, call: Callable[[], Any], middleware: Middleware) -> Awaitable[Any]:
    """Run the call inside async middleware."""
    called: Awaitable[Any] = _chain(job, call, middleware)()
    return called


def _chain(job: Attempt | None, call: Callable[[], Any], middleware: Middleware) -> Callable[[], Any]:
    for one in reversed(middleware):
        call = partial(one, job, call)
    return call
