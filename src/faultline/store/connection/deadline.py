"""How long one call may wait for the database. A frozen server never answers, so the client measures the time itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator


class NoAnswer(psycopg.OperationalError):
    """No answer came in time. The connection is closed."""


class Deadline:
    """The end of one call: waiting for a connection, connecting, sending and the answer all count.

    Each answer restarts the time: a submission of a million jobs needs many statements, and the server is not frozen.
    """

    def __init__(self, seconds: float | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        #: None: no limit.
        self.seconds = seconds
        self._monotonic = monotonic
        self._ends_at: float | None = None
        self.restart()

    def restart(self) -> None:
        if self.seconds is not None:
            self._ends_at = self._monotonic() + self.seconds

    @property
    def left(self) -> float | None:
        return None if self._ends_at is None else max(0.0, self._ends_at - self._monotonic())

    @property
    def passed(self) -> bool:
        return self._ends_at is not None and self._monotonic() >= self._ends_at

    def within(self, seconds: float | None) -> Deadline:
        """The earlier of this deadline and one in `seconds`."""
        if seconds is None or (self.left is not None and self.left <= seconds):
            return self
        return Deadline(seconds, self._monotonic)

    def no_answer(self) -> NoAnswer:
        return NoAnswer(f"no answer within {self.seconds:g} s")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose waits end at a deadline, if it has one.

    A wait checks the time ten times a second. A watching thread would have to be started in every program, and again after
    every fork.
    """

    deadline: Deadline | None = None

    @contextlib.contextmanager
    def until(self, deadline: Deadline) -> Generator[None, None, None]:
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before

    def wait(self, gen: Any, *args: Any, **words: Any) -> Any:
        deadline = self.deadline
        if deadline is None or deadline.seconds is None:
            return super().wait(gen, *args, **words)
        try:
            return super().wait(_until(gen, deadline), *args, **words)
        except NoAnswer:
            # An answer may still arrive: no other statement can use this connection.
            self.close()
            raise


def until(connection: psycopg.Connection[Any], deadline: Deadline) -> contextlib.AbstractContextManager[None]:
    """Stop waiting at the deadline. Does nothing for a simulated connection, which answers at once or never."""
    return connection.until(deadline) if isinstance(connection, BoundedConnection) else contextlib.nullcontext()


def _until(gen: Generator[Any, Any, Any], deadline: Deadline) -> Generator[Any, Any, Any]:
    """Wrap psycopg's generator, and raise at the deadline. psycopg sends 0 if the socket is not ready."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and deadline.passed:
                raise deadline.no_answer()
            wanted = gen.send(ready)
    except StopIteration as stop:
        return stop.value


@contextlib.asynccontextmanager
async def auntil(connection: psycopg.AsyncConnection[Any], deadline: Deadline) -> AsyncIterator[None]:
    """`until` for async connections."""
    scope = asyncio.timeout(deadline.left)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        await connection.close()
        raise deadline.no_answer() from error
