"""Run our statements in the transaction of a caller's session: the seam to other database libraries.

`joined(session)` and `ajoined(session)` take a session or connection of psycopg, asyncpg, psycopg2, SQLAlchemy or Django,
and return what the rest of the code uses: a `Joined` or an `AsyncJoined`. They refuse what is no session, and the other kind
of the two. Nothing is imported for a library that the program does not use.

A further library: a module with `adapted(session) -> Joined | AsyncJoined | None`, and a line in `_ADAPTERS`. A `Joined`
must be able to `send` SQL; for `job.transaction(session)` also to `begin`, `commit` and `roll_back`, and to tell its state.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ConfigError
from faultline.store.external_sessions.adapter import AsyncJoined as AsyncJoined
from faultline.store.external_sessions.adapter import Joined as Joined

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Protocol

    class BlockingSession(Protocol):
        """A blocking session or connection: it has transactions."""

        def commit(self) -> None: ...

    class AsyncSession(Protocol):
        """An async session or connection of psycopg or SQLAlchemy."""

        def commit(self) -> Awaitable[None]: ...

    class AsyncpgConnection(Protocol):
        """A connection of asyncpg."""

        def is_in_transaction(self) -> bool: ...

    #: What `using` and `job.transaction` take.
    Session = BlockingSession | AsyncSession | AsyncpgConnection

#: The package that a class comes from, and the module that knows its sessions.
_ADAPTERS = {
    "asyncpg": "faultline.store.external_sessions.asyncpg",
    "django": "faultline.store.external_sessions.django",
    "psycopg": "faultline.store.external_sessions.psycopg",
    "psycopg2": "faultline.store.external_sessions.psycopg2",
    "sqlalchemy": "faultline.store.external_sessions.sqlalchemy",
}
_TAKEN = "a session or connection of psycopg, asyncpg, psycopg2, SQLAlchemy or Django"


def joined(session: Any) -> Joined:
    """The adapter of a blocking session. Raises `ConfigError`."""
    found = adapted(session)
    if isinstance(found, AsyncJoined):
        raise ConfigError(
            f"{found.what} is async: what joins its transaction must be awaited. Use aenqueue(), not enqueue():"
            " `await task.using(session).aenqueue(...)`, or `async with job.transaction(session)` in an async task"
        )
    return found


def ajoined(session: Any) -> AsyncJoined:
    """The adapter of an async session. Raises `ConfigError`."""
    found = adapted(session)
    if isinstance(found, Joined):
        raise ConfigError(
            f"{found.what} is blocking: it would stop the event loop. Use an async session; in blocking code use"
            " enqueue(), not aenqueue(): `task.using(session).enqueue(...)`"
        )
    return found


def adapted(session: Any) -> Joined | AsyncJoined:
    """The adapter of a session. Raises `ConfigError` for anything else."""
    if isinstance(session, Joined | AsyncJoined):
        return session
    # As it says itself: the connection of a job's transaction is guarded, and stands for a psycopg connection.
    for kind in session.__class__.__mro__:
        module = _ADAPTERS.get(kind.__module__.partition(".")[0])
        found: Joined | AsyncJoined | None = None if module is None else import_module(module).adapted(session)
        if found is not None:
            return found
    raise ConfigError(f"{_shown(session)} cannot be joined: give {_TAKEN}. {_advice(session)}")


def _shown(session: Any) -> str:
    kind = session.__class__
    # Not its text: that of a DSN holds a password.
    shown = f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"
    return f"{shown} of {kind.__module__}" if kind.__module__ != "builtins" else shown


def _advice(session: Any) -> str:
    name = session.__class__.__name__.lower()
    if session is None:
        return "Without a transaction of your own, leave out using(...)"
    if "sessionmaker" in name or "engine" in name:
        return "Open one first, as in `with engine.begin() as connection` or `with sessions.begin() as session`"
    if "pool" in name:
        return "Take a connection from the pool first"
    if "cursor" in name:
        return "Give the cursor's connection"
    return "Its transaction decides whether the job exists"
