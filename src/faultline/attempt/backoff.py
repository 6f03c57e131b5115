"""Whether a failed attempt is followed by another, and after how long. Checked where the task is decorated."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from faultline.attempt.outcomes import Outcome
from faultline.core.bounds import AGAIN_SECONDS_MAX
from faultline.core.checks import Duration, check_seconds, seconds
from faultline.core.errors import ConfigError, declaring

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

#: The default of the database, as `Backoff.exponential()` has it.
_FIRST_SECONDS, _MOST_SECONDS, _FACTOR, _JITTER = 2.0, 3600.0, 2.0, 0.25
_FACTOR_MAX = 100.0

#: A class of exceptions, or several.
Exceptions = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job waits after a failed attempt: `backoff=Backoff.exponential(first=5, most=600)`.

    `Backoff.exponential()` is what a task has that says nothing.
    """

    #: After the first failed attempt.
    first: Duration
    #: Each further delay is so many times as long.
    factor: float = 1.0
    #: The longest delay, before jitter.
    most: Duration = AGAIN_SECONDS_MAX
    #: Delays are spread by so much of themselves, from 0 to 1: jobs that failed together do not run again together.
    jitter: float = 0.0

    def __post_init__(self) -> None:
        with declaring():
            check_seconds("first of Backoff", self.first, 0.0, AGAIN_SECONDS_MAX)
            check_seconds("most of Backoff", self.most, 0.0, AGAIN_SECONDS_MAX)
        for name, least, limit in (("factor", 1.0, _FACTOR_MAX), ("jitter", 0.0, 1.0)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= limit:
                raise ConfigError(f"{name} of Backoff must be a number from {least:g} to {limit:g}, not {value!r}")
        if self.first is None or self.most is None:  # type: ignore[redundant-expr]  # callers without a type checker
            raise ConfigError("first and most of Backoff must be seconds or timedeltas, not None")
        if _number(self.most) < _number(self.first):
            raise ConfigError(f"most of Backoff, {_number(self.most):g} s, is shorter than first, {_number(self.first):g} s")

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """The same delay after each failed attempt.

        :param delay: How long to wait.
        :param jitter: Spread delays by so much of themselves, from 0 to 1.
        """
        return cls(delay, most=delay, jitter=jitter)

    @classmethod
    def exponential(
        cls,
        first: Duration = _FIRST_SECONDS,
        *,
        factor: float = _FACTOR,
        most: Duration = _MOST_SECONDS,
        jitter: float = _JITTER,
    ) -> Backoff:
        """Delays that grow.

        :param first: After the first failed attempt.
        :param factor: Each further delay is so many times as long.
        :param most: The longest delay, before jitter.
        :param jitter: Spread delays by so much of themselves, from 0 to 1.
        """
        return cls(first, factor, most, jitter)

    def __call__(self, attempt: int) -> float:
        """The seconds to wait after this attempt has failed, before jitter.

        :param attempt: Its number, from 1.
        """
        try:
            return min(_number(self.first) * self.factor ** (attempt - 1), _number(self.most))
        except OverflowError:
            return _number(self.most)

    def spread(self, attempt: int, chance: random.Random) -> float:
        """The same with jitter."""
        return self(attempt) * chance.uniform(1.0 - self.jitter, 1.0 + self.jitter)


def check_backoff(task: str, backoff: object) -> None:
    """Raise `ConfigError` unless it is None, a `Backoff`, or a function of the number of an attempt."""
    if backoff is None or isinstance(backoff, Backoff):
        return
    if isinstance(backoff, int | float | timedelta):
        raise ConfigError(f"task {task}: backoff is {backoff!r}; for the same delay each time, write Backoff.fixed(...)")
    if not callable(backoff) or isinstance(backoff, type):
        raise ConfigError(
            f"task {task}: backoff must be a Backoff, such as Backoff.exponential(first=5, most=600), or a function of the"
            f" number of the failed attempt, not {backoff!r:.80}"
        )
    if inspect.iscoroutinefunction(backoff):
        raise ConfigError(f"task {task}: backoff is an async function, which nothing awaits; make it a plain one")
    try:
        inspect.signature(backoff).bind(1)
    except TypeError as error:
        raise ConfigError(f"task {task}: backoff is called with the number of the failed attempt: {error}") from error
    except ValueError:
        pass  # a function without a signature


class Rules:
    """After which exceptions of a task there is another attempt."""

    __slots__ = ("_give_up_on", "_retry_on")

    def __init__(self, retry_on: Exceptions | None, give_up_on: Exceptions | None, task: str) -> None:
        instead = "leave it out, or write max_attempts=1 for no second attempt"
        self._retry_on = classes_of("retry_on", retry_on, f"task {task}", instead)
        self._give_up_on = classes_of("give_up_on", give_up_on, f"task {task}", instead)
        both = sorted(one.__name__ for one in {*(self._retry_on or ())} & {*(self._give_up_on or ())})
        if both:
            raise ConfigError(f"task {task}: {', '.join(both)} is in retry_on and in give_up_on")

    def final(self, error: BaseException) -> str | None:
        """Why no attempt follows this exception; None: one does, if any is left.

        Of a group of exceptions all must be retried, and none given up on.
        """
        raised = list(_alone(error))
        found = next((one for one in raised if isinstance(one, self._give_up_on or ())), None)
        if found is not None:
            return f"Not retried: give_up_on of the task has {_named(found, self._give_up_on or ())}."
        if self._retry_on is not None and not all(isinstance(one, self._retry_on) for one in raised):
            return f"Not retried: retry_on of the task has only {', '.join(one.__name__ for one in self._retry_on)}."
        return None


def rules_of(retry_on: Exceptions | None, give_up_on: Exceptions | None, task: str) -> Rules | None:
    """None: every exception is followed by another attempt."""
    return None if retry_on is None and give_up_on is None else Rules(retry_on, give_up_on, task)


def classes_of(name: str, given: Exceptions | None, whose: str, instead: str) -> tuple[type[Exception], ...] | None:
    """What a task or step declares. `whose`: what begins the message. `instead`: of declaring nothing."""
    if given is None:
        return None
    found = tuple(given) if isinstance(given, tuple | list | set | frozenset) else (given,)
    if not found:
        raise ConfigError(f"{whose}: {name} is empty; {instead}")
    for one in found:
        if not isinstance(one, type) or not issubclass(one, Exception):  # type: ignore[redundant-expr]  # likewise
            raise ConfigError(f"{whose}: {name} takes classes of exceptions, such as (TimeoutError,), not {one!r:.80}")
        if issubclass(one, Outcome):
            raise ConfigError(f"{whose}: {name} has {one.__name__}, which says itself what follows; leave it out")
    return found


def _alone(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, or the one."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in error.exceptions:
        yield from _alone(one)


def _named(error: BaseException, classes: tuple[type[Exception], ...]) -> str:
    return next(one.__name__ for one in classes if isinstance(error, one))


def _number(duration: Duration) -> float:
    return float(seconds(duration) or 0.0)
