"""Mistakes in a call: errors that say what it got and what to write instead, and warnings that show its line."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from faultline.attempt.options import Duration, check_seconds
from faultline.core import events
from faultline.core.bounds import DELAY_SECONDS_MAX
from faultline.core.errors import ConfigError, JobRejected
from faultline.flow.step_functions import Step
from faultline.history.calls import Call, Made

if typing.TYPE_CHECKING:
    from uuid import UUID

#: What can be iterated and is not a list of items.
_NO_LISTS: tuple[tuple[Any, str], ...] = (
    ((str, bytes), "; for a child with the whole of it, use job.call"),
    (Mapping, "; pass list(items.values()) or list(items.items())"),
    (AbstractSet, ", which may have another order in the next run; pass sorted(items)"),
)


def check_step(job_id: UUID, what: str, step: object) -> None:
    """`what`: the method that takes it, such as `job.do`."""
    if isinstance(step, Step):
        return
    how = ""
    if is_task(step):
        how = f", and {step.name} is a task; run it as a child with job.call({step.name}, ...)"
    elif inspect.iscoroutine(step):
        how = _called(what, step)
    elif callable(step):
        how = f", and {_name(step)} is a plain function; put @app.step above it"
    raise ConfigError(f"job {job_id}: {what} takes a step{how or f', as @app.step makes it, not {step!r:.80}'}")


def check_undo(job_id: UUID, what: str, undo: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse an undo that cannot be called, before there is anything to undo."""
    if undo is None:
        return
    check_step(job_id, f"{what}(undo=...)", undo)
    if undo.signature is None:
        return
    try:
        undo.signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"job {job_id}: {what}(undo={undo.name}): an undo is called with the result and then the same arguments, and"
            f" {undo.name}{undo.signature} does not take those: {error}"
        ) from None


def check_named(whose: str, args: object) -> None:
    """Arguments of a job, by their names. `whose`: what they belong to."""
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise JobRejected(f'the arguments of {whose} must be a dict by name, as {{"order_id": 42}}, not {args!r:.80}')


def check_atomic(job_id: UUID, function: object) -> None:
    """A step in a transaction is not tried again: the transaction has failed with it."""
    if isinstance(function, Step) and (function.retries.times or function.timeout_seconds is not None):
        raise ConfigError(
            f"job {job_id}: job.atomic runs a step once, in the job's transaction, but {function.name} has retries or a"
            " timeout; leave them out, or run it with job.do"
        )


def check_task(whose: str, what: str, task: object, instead: str = "run it with job.do({name}, ...)") -> None:
    """`whose`: what begins the message. `instead`: of a step."""
    if is_task(task):
        return
    how = f", as @app.task makes it, not {task!r:.80}"
    if isinstance(task, Step):
        how = f", and {task.name} is a step; {instead.format(name=task.name)}"
    elif inspect.iscoroutine(task):
        how = _called(what, task)
    elif callable(task):
        how = f", and {_name(task)} is a plain function; put @app.task above it"
    raise ConfigError(f"{whose}{what} takes a task{how}")


def is_task(task: Any) -> typing.TypeGuard[Any]:
    """Whether it can be called as a child; a job does not import tasks."""
    return callable(getattr(task, "bind", None)) and not isinstance(task, Made)


def check_items(job_id: UUID, what: str, items: object) -> None:
    if type(items) is list:
        return
    how = None if isinstance(items, Iterable) else f", not {items!r:.80}"
    for kinds, instead in _NO_LISTS:
        if isinstance(items, kinds):
            how = f", and got a {type(items).__name__}{instead}"
    if how is not None:
        raise ConfigError(f"job {job_id}: {what} takes a list of items{how}")


def check_policy(on_failure: str) -> None:
    if on_failure not in ("raise", "keep", "fast"):
        raise ConfigError(f"on_failure must be raise, keep or fast, not {on_failure!r}")


def check_kind(job_id: UUID, name: str, kind: Any) -> None:
    """What a payload is read as."""
    named = isinstance(kind, type | typing.NewType | typing.TypeVar) or type(kind).__name__ == "TypeAliasType"
    if not named and kind not in (Any, None) and typing.get_origin(kind) is None:
        raise ConfigError(
            f"job {job_id}: job.receive({name!r}, type) takes the type that the payload is read as, such as str or a"
            f" dataclass, not {kind!r:.80}"
        )


def check_sleep(duration: Duration | None) -> None:
    if duration is None:
        raise ConfigError("sleep must be a number of seconds or a timedelta, not None")
    check_seconds("sleep", duration, -DELAY_SECONDS_MAX, DELAY_SECONDS_MAX)


def check_concurrency(what: str, concurrency: int | None) -> None:
    """How many of something may have begun and not ended."""
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise ConfigError(f"{what}: concurrency must be a whole number from 1, not {concurrency!r}")


def check_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Arguments of a step or a child, none of which is a call without its await."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, Made):
            raise one.unawaited()


def not_a_call(job_id: UUID, what: str, one: object, wanted: type[Made[Any]]) -> ConfigError:
    """`what`: `job.gather` or `job.race`, which takes such calls."""
    maker = "job" if wanted is Call else "job.later"
    how = f"as {maker}.do(...) or {maker}.branch(...) make them, not {type(one).__name__}"
    if isinstance(one, list | tuple) or inspect.isgenerator(one):
        how = f"and got a {type(one).__name__}; write {what}(*calls)"
    elif inspect.iscoroutine(one):
        how = f"and got a coroutine of {_name(one)}; write {maker}.branch({_name(one)}, ...)"
        one.close()
    elif wanted is Call:
        how += "; leave out the await"
    return ConfigError(f"job {job_id}: {what} takes calls of this job, {how}")


def _called(what: str, coroutine: Any) -> str:
    coroutine.close()
    name = _name(coroutine)
    return f", and {name} was called here; pass the function and its arguments apart: {what}({name}, ...)"


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def warn_in_event_loop(name: str, until: str = "the database answers") -> None:
    """A blocking call stops everything else in its event loop until then."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - without an exception where there is none, as on the hot path
        events.warn(
            f"{name}() blocks, and an event loop is running in this thread: nothing else runs in it until {until}."
            f" Write `await ...a{name}(...)`"
        )
