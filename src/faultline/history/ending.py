"""What the engine raises to end a run of a program before its task is finished.

No `except Exception` catches it, and it is sticky: every later call of the same run raises it again. So a program that
catches it nevertheless can run nothing more.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ChildFailed, CostTooHigh, FlowTooLong, SignalTimeout, UnreadableJson

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Under this number a job waits for budgets: each time that it waits has another end.
TAKE_NUMBER = "0.0.0"
#: The attribute of an error that has the number of the call that raised it.
_CALL = "_faultline_call"


class RunEnded(BaseException):
    """The run is over. The job is not: what becomes of it depends on the kind."""


class Suspended(RunEnded):
    """The job waits: `Program.waits` says for what. It gives its lease back, and the attempt with it."""


class Waiting(RunEnded):
    """One call waits. Whoever awaits it decides whether the whole branch does. Without waits: it was closed, for good."""

    def __init__(self, waits: list[dict[str, Any]]) -> None:
        super().__init__()
        self.waits = waits


class TooFew(Waiting):
    """A budget has too few tokens for a take. `again_at`: when it will have enough, by the clock of this process."""

    def __init__(self, waits: list[dict[str, Any]], again_at: float) -> None:
        super().__init__(waits)
        self.again_at = again_at


class Closed(RunEnded):
    """A branch has lost a race: nobody waits for it any more, and it makes no further calls. The run goes on."""


class CodeChanged(RunEnded):
    """The program does not fit what the job has recorded. Nothing was run; no attempt is used up."""


class Interrupted(RunEnded):
    """A call could not be recorded. `error` says why and decides what follows, as if the task had raised it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = self.__cause__ = error


class Halted(RunEnded):
    """A saga of this job has failed. The program makes no further calls, while the undos of its open sagas run."""


class Undone(RunEnded):
    """A saga failed, and its steps were undone. The job ends: `then` is `fail` or `cancel`."""

    def __init__(self, text: str, then: str) -> None:
        super().__init__(text)
        self.then = then


def leaves(error: BaseException | None) -> Iterator[BaseException]:
    """The errors in it: of a group, of groups in it too. For one that was raised because the run had ended, that ending."""
    if error is None:
        return
    ending = _ending_behind(error)
    if not isinstance(error, BaseExceptionGroup):
        yield ending or error
    elif ending is not None and not is_member(ending, error):
        yield ending
    else:
        for one in error.exceptions:
            yield from leaves(one)


def is_member(error: BaseException, group: BaseExceptionGroup[Any]) -> bool:
    """Whether it is in the group, or in one that is in it. So it is where a task group tells what became of its tasks."""
    return any(one is error or (isinstance(one, BaseExceptionGroup) and is_member(error, one)) for one in group.exceptions)


def cause_of(error: BaseException) -> BaseException | None:
    """What Python shows above it in a traceback."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _ending_behind(error: BaseException) -> RunEnded | None:
    """What ended the run, if this error was raised because of it: a library may wrap every BaseException."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, RunEnded):
            return found
        seen.add(id(found))
        found = cause_of(found)
    return None


def note_call(error: BaseException, number: str) -> None:
    """Remember which call raised it. The innermost one counts: others pass it on."""
    if number and getattr(error, _CALL, None) is None:
        with contextlib.suppress(AttributeError):
            setattr(error, _CALL, number)


def calls_in(error: BaseException | None) -> list[str]:
    """The numbers of the calls that raised it, or raised what it was made from."""
    seen: set[int] = set()
    numbers: dict[str, None] = {}
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        number = getattr(found, _CALL, None)
        if number is not None:
            numbers[number] = None
        if isinstance(found, BaseExceptionGroup):
            waiting.extend(found.exceptions)
        waiting.append(cause_of(found))
    return list(numbers)


def is_ours(error: BaseException | None) -> bool:
    """Whether all of it was raised by the engine. A task group turns that into cancellations of its other tasks."""
    return all(isinstance(leaf, RunEnded | CancelledError) for leaf in leaves(error))


def is_final(error: BaseException) -> bool:
    """Whether every further attempt would read the same history and raise the same error."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_final(one) for one in error.exceptions)
    return isinstance(error, ChildFailed | SignalTimeout | FlowTooLong | UnreadableJson | CostTooHigh)


def too_few(error: BaseException | None) -> list[TooFew]:
    """The takes that it is about, if the engine raised all of it."""
    return [leaf for leaf in leaves(error) if isinstance(leaf, TooFew)] if is_ours(error) else []
