"""What a probe is: a small story on a database of its own that ends as promised, or says what it saw instead."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from faultline.core.errors import FaultlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faultline.core.model import Unwritten
    from faultline_proof.sessions import Session, Sessions


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    #: What it is about: functions, tables, or a word like `role`. Mutants of the same are shown to it first.
    about: frozenset[str]
    #: Raises what it saw when a promise is broken.
    play: Callable[[Sessions], None]


PROBES: list[Probe] = []


def probe(*about: str) -> Callable[[Callable[[Sessions], None]], Callable[[Sessions], None]]:
    """Make a function a probe. Its name, read as a sentence, is the promise."""

    def register(play: Callable[[Sessions], None]) -> Callable[[Sessions], None]:
        PROBES.append(Probe(play.__name__.replace("_", " "), frozenset(about), play))
        return play

    return register


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {_short(found)} instead of {_short(wanted)}")


def the_one(what: str, found: Sequence[T]) -> T:
    """The only element; what was found instead, if there is none or more."""
    if len(found) != 1:
        raise AssertionError(f"{what}: {_short(found)} instead of one")
    return found[0]


@contextlib.contextmanager
def refused(session: Session, by: str | Sequence[str], *texts: str, what: str = "") -> Iterator[None]:
    """Around what the database must refuse, with one of these SQLSTATEs and a message that holds all of these texts."""
    try:
        with session.connection.transaction():
            yield
    except (psycopg.Error, FaultlineError) as error:
        cause = error if isinstance(error, psycopg.Error) else error.__cause__
        state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
        if state not in ([by] if isinstance(by, str) else by) or any(text not in str(error) for text in texts):
            raise
    else:
        raise AssertionError(f"{_short(what or 'it')} was not refused{' with ' + ', '.join(texts) if texts else ''}")


def reasons(unwritten: Unwritten) -> list[str]:
    return [refusal.reason.value for refusal in unwritten.stale]


def _short(found: Any) -> str:
    text = str(found) if isinstance(found, str) else repr(found)
    return text if len(text) <= 300 else f"{text[:300]}…"  # noqa: PLR2004 - a line or two
