"""Steps: functions with the policy by which a flow runs them. A step runs once per call of the program."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from faultline import values
from faultline.attempt.attempt import check_step_name
from faultline.attempt.backoff import Exceptions, classes_of
from faultline.attempt.options import Duration, check_seconds, seconds
from faultline.core.bounds import AGAIN_SECONDS_MAX, ATTEMPTS_MAX, DELAY_SECONDS_MAX
from faultline.core.errors import ConfigError, StepFailed, declaring
from faultline.core.pause import doubled, jittered

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_SECONDS, _MOST_SECONDS = 1.0, 300.0


@dataclass(frozen=True)
class Retries:
    """How often a step that fails is tried again, which uses up no attempt of its job."""

    #: How many tries follow the first.
    times: int
    #: Only after these exceptions.
    on: type[BaseException] | tuple[type[BaseException], ...] = Exception
    #: The pause before the second try; each further one is twice as long. Pauses of more than 5 s hold no lease.
    first: Duration = _FIRST_SECONDS
    #: The longest pause.
    most: Duration = _MOST_SECONDS

    def __post_init__(self) -> None:
        if not isinstance(self.times, int) or not 0 <= self.times < ATTEMPTS_MAX:  # type: ignore[redundant-expr]  # callers without a type checker
            raise ConfigError(f"Retries(times) must be a whole number from 0 to {ATTEMPTS_MAX - 1}, not {self.times!r}")
        kinds = self.classes
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):  # type: ignore[redundant-expr]  # likewise
            raise ConfigError(f"Retries(on=…) must be classes of exceptions, not {self.on!r}")
        with declaring():
            check_seconds("Retries(first=…)", self.first, 0.0, AGAIN_SECONDS_MAX)
            check_seconds("Retries(most=…)", self.most, 0.0, AGAIN_SECONDS_MAX)

    @property
    def classes(self) -> tuple[type[BaseException], ...]:
        return self.on if isinstance(self.on, tuple) else (self.on,)

    def pause_seconds(self, tries: int, chance: random.Random) -> float:
        """How long to wait after so many tries."""
        first, most = float(seconds(self.first) or 0.0), float(seconds(self.most) or 0.0)
        return jittered(doubled(first, tries, most), chance) if first else 0.0


class Step(Generic[P, R]):
    """A function that a flow runs with `job.do`. Calling it calls the function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        retries: Retries | int = 0,
        timeout: Duration | None = None,
        raises: Exceptions | None = None,
    ) -> None:
        #: The name by which a job remembers it.
        self.name: str = name or str(getattr(fn, "__qualname__", type(fn).__name__)).rsplit("<locals>.", 1)[-1]
        with declaring("@app.step"):
            check_step_name(self.name)
            check_seconds("timeout", timeout, 0.001, DELAY_SECONDS_MAX)
        self.fn = fn
        self.retries = retries if isinstance(retries, Retries) else Retries(retries)
        #: Its answers that are exceptions: a program gets them as they are, in every run.
        self.raises = _answers(self.name, raises, self.retries)
        #: How a call of it fails: by these, and no others.
        self.failures: tuple[type[Exception], ...] = (StepFailed, *self.raises)
        self.timeout_seconds = seconds(timeout)
        if timeout is not None and not inspect.iscoroutinefunction(inspect.unwrap(fn)):
            raise ConfigError(
                f"step {self.name}: a plain function cannot be stopped, so it has no timeout; make it `async def`, or give"
                " the task a timeout"
            )
        functools.update_wrapper(self, fn, assigned=("__module__", "__doc__"), updated=())

    @cached_property
    def returns(self) -> Any:
        """What its result is read as."""
        return values.returned(self.fn)

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """What it takes; None if Python does not know."""
        try:
            return inspect.signature(self.fn)
        except (TypeError, ValueError):
            return None

    def is_tried_again(self, error: Exception, tries: int) -> bool:
        """Whether another try follows this error of the last one of so many. None follows an answer."""
        return tries <= self.retries.times and isinstance(error, self.retries.on) and not isinstance(error, self.raises)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name}>"


def _answers(step: str, raises: Exceptions | None, retries: Retries) -> tuple[type[Exception], ...]:
    """The classes that a step declares, or `ConfigError`."""
    found = classes_of("raises", raises, f"step {step}", "leave it out") or ()
    if Exception in found:
        raise ConfigError(f"step {step}: raises has Exception, which every failure is; name the classes that programs catch")
    for one in retries.classes:
        if issubclass(one, found):
            raise ConfigError(
                f"step {step}: Retries(on=…) has {one.__name__}, but what raises declares is an answer, and not tried again"
            )
    names = [values.full_name(one) for one in found]
    for one in found:
        if names.count(values.full_name(one)) > 1:
            raise ConfigError(
                f"step {step}: raises has two classes named {one.__qualname__} of the module {one.__module__}; what is"
                " stored could not tell them apart"
            )
    return found


class StepDecorator(Protocol):
    """The decorator `@app.step(...)`: turns a function into a step and keeps the types of its parameters and result."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...
