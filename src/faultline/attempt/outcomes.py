"""What a task may return or raise instead of a result. Checked when created: an invalid one fails in the task itself.

`return Retry(...)` and `raise Retry(...)` mean the same; likewise for `Fail`, `Snooze`, `Cancel` and `ContinueAsNew`. A new
outcome is a class here whose `decided` returns what to write for the attempt. Export it from the package; name it in
`AnOutcome`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from faultline.attempt.options import check_seconds, seconds
from faultline.attempt.storable_text import storable, text_of
from faultline.core.bounds import AGAIN_SECONDS_MAX, ERROR_LENGTH_MAX, SNOOZE_SECONDS_MIN
from faultline.core.errors import JobRejected
from faultline.core.model import Failure, Release

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.attempt.options import Duration


class NoOutcome(Protocol):
    """For type checkers: what an `Outcome` is not, and every other class is."""

    def __sizeof__(self) -> int: ...


class Outcome(Exception):
    """A value that can be returned or raised. Its fields are read-only; what Python sets on exceptions is not."""

    if TYPE_CHECKING:
        __sizeof__: None  # type: ignore[assignment]  # so that it is none of `NoOutcome`

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("__"):
            raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; create another {type(self).__name__}")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return repr(self)

    def decided(self, backoff: Callable[[], float]) -> Failure | Release:
        """What to write for the attempt. `backoff` returns the task's own seconds until the next one."""
        raise NotImplementedError

    def _keep(self, **fields: object) -> None:
        self.__dict__.update(fields)


@dataclass(unsafe_hash=True, init=False)
class Retry(Outcome):
    """Return or raise `Retry(60)` to fail this attempt and run again in 60 s; without a delay, after the task's backoff.

    :param after: How long to wait before the next attempt. Default: the task's backoff.
    :param error: Shown as the reason: text, or the exception that was caught.
    """

    after: Duration | None
    error: str

    def __init__(self, after: Duration | None = None, error: str | BaseException = "the task asked for a retry") -> None:
        _check_delay("Retry(after=…)", after)
        self._keep(after=after, error=_text("Retry(error=…)", error))

    def decided(self, backoff: Callable[[], float]) -> Failure:
        return Failure(self.error, delay_seconds=backoff() if self.after is None else delay_seconds(self.after))


@dataclass(unsafe_hash=True, init=False)
class Snooze(Outcome):
    """Return or raise `Snooze(60)` to run again in 60 s without using up an attempt.

    :param duration: How long to wait; at least 0.1 s.
    """

    duration: Duration

    def __init__(self, duration: Duration) -> None:
        if duration is None:
            raise JobRejected("Snooze(duration) must be a number of seconds or a timedelta, not None")
        _check_delay("Snooze(duration)", duration)
        self._keep(duration=duration)

    def decided(self, backoff: Callable[[], float]) -> Release:  # noqa: ARG002 - nothing failed
        return Release(max(SNOOZE_SECONDS_MIN, delay_seconds(self.duration)))


@dataclass(unsafe_hash=True, init=False)
class Cancel(Outcome):
    """Return or raise `Cancel("reason")` to cancel this job. It does not count as a failure.

    :param reason: Shown as the error of the job.
    """

    reason: str

    def __init__(self, reason: str = "the task cancelled itself") -> None:
        self._keep(reason=_text("Cancel(reason)", reason))

    def decided(self, backoff: Callable[[], float]) -> Failure:  # noqa: ARG002 - there is no next attempt
        return Failure(self.reason, then="cancel")


@dataclass(unsafe_hash=True, init=False)
class Fail(Outcome):
    """Return or raise `Fail("reason")` to fail this job, whatever attempts it has left.

    :param error: Shown as the error of the job: text, or the exception that was caught.
    """

    error: str

    def __init__(self, error: str | BaseException = "the task gave up") -> None:
        self._keep(error=_text("Fail(error)", error))

    def decided(self, backoff: Callable[[], float]) -> Failure:  # noqa: ARG002 - there is no next attempt
        return Failure(self.error, then="fail")


@dataclass(eq=False, init=False)
class ContinueAsNew(Outcome):
    """Return or raise `ContinueAsNew(...)` to begin this job anew, with these arguments and without its history.

    For programs that never end, such as a loop that waits: their history would grow without end. It is the same job, with
    the same id and key. Signals that nobody has received yet stay.

    :param args: Positional arguments of the task, without the job.
    :param kwargs: Named arguments of the task.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._keep(positional=args, named=kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.positional, self.named)

    def decided(self, backoff: Callable[[], float]) -> Failure:  # noqa: ARG002 - there is no next attempt
        return Failure("the task asked to begin anew, which its worker does not know how to do", then="fail")


#: What a task may return beside its result.
AnOutcome = Retry | Fail | Snooze | Cancel | ContinueAsNew


def _again(positional: tuple[Any, ...], named: dict[str, Any]) -> ContinueAsNew:
    return ContinueAsNew(*positional, **named)


def delay_seconds(duration: Duration) -> float:
    return float(seconds(duration) or 0.0)


def _check_delay(what: str, duration: Duration | None) -> None:
    check_seconds(what, duration, 0.0, AGAIN_SECONDS_MAX)


def _text(what: str, value: str | BaseException) -> str:
    if isinstance(value, BaseException):
        return text_of(value)
    if not isinstance(value, str):
        raise JobRejected(f"{what} must be text or an exception, not {value!r}"[:ERROR_LENGTH_MAX])
    return storable(value[:ERROR_LENGTH_MAX])
