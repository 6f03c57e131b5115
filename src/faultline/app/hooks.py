"""Hooks: what a program wants to happen around its jobs, and while its workers live.

A *middleware* is part of an attempt: its time counts, and what it raises fails the attempt. An *observer* only looks on:
nothing that it does changes a job. A *lifespan* opens what jobs share, and closes it when the worker ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from faultline.core import events
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.app.handle import JobHandle
    from faultline.attempt.attempt import Attempt
    from faultline.core.model import Submission

#: What the functions are called with. An error may be annotated as `Exception`, or as `BaseException`.
Around = TypeVar("Around", bound="Callable[[Attempt, Callable[[], Any]], Any]")
OnJob = TypeVar("OnJob", bound="Callable[[Attempt], Any]")
OnError = TypeVar("OnError", bound="Callable[[Attempt, Any], Any]")
OnEnqueue = TypeVar("OnEnqueue", bound="Callable[[JobHandle[Any], Submission], None]")
Opening = TypeVar("Opening", bound="Callable[[], Any]")
Observer = TypeVar("Observer", bound=Callable[..., Any])
#: The observers that a worker calls.
OBSERVED = ("start", "success", "retry", "failure")


@dataclass(frozen=True, slots=True)
class Lifespan:
    name: str
    #: Returns a context manager, async or not.
    opened: Callable[[], Any]
    is_async: bool


@dataclass(frozen=True, slots=True)
class HookTable:
    """The hooks of an application, each kind in the order in which they were registered."""

    middleware: list[Callable[..., Any]] = field(default_factory=list)
    lifespans: list[Lifespan] = field(default_factory=list)
    on_enqueue: list[Callable[..., Any]] = field(default_factory=list)
    #: By what they observe: one of `OBSERVED`.
    observers: dict[str, list[Callable[..., Any]]] = field(default_factory=lambda: {what: [] for what in OBSERVED})

    @property
    def observe(self) -> bool:
        return any(self.observers.values())


class Hooks:
    """What an application does with hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks = HookTable()

    def middleware(self, fn: Around, /) -> Around:
        """Run this function around every attempt: `@app.middleware`. The first one registered is the outermost.

        It is called with the job and with a function that runs the rest, and returns the result of that, or another. An
        `async def` wraps every task. A plain `def` wraps tasks that are plain functions, in their threads and processes.

        :param fn: `async def fn(job, call): return await call()`, or the same without `async` and `await`.
        """
        _check_call(fn, "a middleware", ("job", "call"))
        self.hooks.middleware.append(_called(fn))
        return fn

    def lifespan(self, fn: Opening, /) -> Opening:
        """Open in each worker what its jobs share, before the first job, and close it after the last: `@app.lifespan`.

        What it yields, a dict, is the `state` of every job. A plain generator runs in a thread of its own.

        :param fn: A generator, async or not, without parameters that yields once.
        """
        self.hooks.lifespans.append(_lifespan(fn))
        return fn

    def on_enqueue(self, fn: OnEnqueue, /) -> OnEnqueue:
        """Call this function for each job that this program has enqueued: `@app.on_enqueue`.

        It is called where the job is enqueued, after the database has accepted it, and before a transaction of the caller
        commits. What it raises is logged.

        :param fn: `def fn(handle, submission)`. Not async: a blocking `enqueue` could not await it.
        """
        _check_call(fn, "on_enqueue", ("handle", "submission"))
        if inspect.iscoroutinefunction(_called(fn)):
            raise ConfigError(
                f"on_enqueue calls {hook_name(fn)} also from a blocking enqueue, which cannot await it; make it `def`"
            )
        self.hooks.on_enqueue.append(fn)
        return fn

    def on_start(self, fn: OnJob, /) -> OnJob:
        """Call this function when an attempt has started: `@app.on_start`.

        :param fn: `async def fn(job)`, or a plain `def`, which runs in a thread.
        """
        return self._observe("start", fn, ("job",))

    def on_success(self, fn: OnJob, /) -> OnJob:
        """Call this function when a job has succeeded and that is written: `@app.on_success`.

        :param fn: `async def fn(job)`, or a plain `def`, which runs in a thread.
        """
        return self._observe("success", fn, ("job",))

    def on_retry(self, fn: OnError, /) -> OnError:
        """Call this function when an attempt has failed and the job will run again: `@app.on_retry`.

        :param fn: `async def fn(job, error)`, or a plain `def`, which runs in a thread. The error is an exception.
        """
        return self._observe("retry", fn, ("job", "error"))

    def on_failure(self, fn: OnError, /) -> OnError:
        """Call this function when a job has failed and will not run again: `@app.on_failure`.

        Also for a job whose last worker died: then by the worker that noticed.

        :param fn: `async def fn(job, error)`, or a plain `def`, which runs in a thread. The error is an exception.
        """
        return self._observe("failure", fn, ("job", "error"))

    def _observe(self, what: str, fn: Observer, takes: Sequence[str]) -> Observer:
        _check_call(fn, f"on_{what}", takes)
        self.hooks.observers[what].append(_called(fn))
        return fn

    def _has_enqueued(self, jobs: Sequence[Submission], handles: Sequence[JobHandle[Any]]) -> None:
        """The jobs are in the database: nothing that an observer raises may look as if they were not."""
        for submission, handle in zip(jobs, handles, strict=True):
            for fn in self.hooks.on_enqueue:
                try:
                    fn(handle, submission)
                except Exception as error:  # noqa: BLE001 - see above
                    name, text = hook_name(fn), f"{type(error).__name__}: {error}"[:500]
                    events.emit("hook_failed", hook=name, job_id=handle.id, task=submission.task, error=text)


def _lifespan(fn: Callable[..., Any]) -> Lifespan:
    inside = inspect.unwrap(fn)
    is_async = inspect.isasyncgenfunction(inside)
    if not is_async and not inspect.isgeneratorfunction(inside):
        raise ConfigError(f"a lifespan must be a generator that yields once, and {hook_name(fn)} is not; write `yield`")
    _check_call(fn, "a lifespan", ())
    opened: Any = fn
    if inside is fn:
        opened = asynccontextmanager(fn) if is_async else contextmanager(fn)
    return Lifespan(hook_name(fn), opened, is_async)


def _check_call(fn: Callable[..., Any], what: str, takes: Sequence[str]) -> None:
    if not callable(fn):
        raise ConfigError(f"{what} must be a function, not {fn!r}")
    try:
        inspect.signature(fn).bind(*takes)
    except TypeError as error:
        shown = f"called with ({', '.join(takes)})" if takes else "called without arguments"
        raise ConfigError(f"{what} is {shown}, and {hook_name(fn)} does not take that: {error}") from None
    except ValueError:
        return  # a function of C, which does not say what it takes


def _called(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same, as a function that says whether it is async: an object with an async `__call__` does not, nor does a plain
    function around an async one.
    """
    below = (inspect.unwrap(fn), type(fn).__call__)
    if inspect.iscoroutinefunction(fn) or not any(map(inspect.iscoroutinefunction, below)):
        return fn

    async def awaited(*args: Any) -> Any:
        return await fn(*args)

    awaited.__qualname__ = hook_name(fn)
    return awaited


def hook_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)
