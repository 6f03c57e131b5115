"""How the doctor asks: one question after the other, each with a deadline. An unanswered one does not stop the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from faultline.core.errors import DatabaseUnavailable, OutcomeUnknown, SchemaError
from faultline.doctor.checks import Finding, Level
from faultline.store.connection.connecting import CONNECT_SECONDS
from faultline.store.connection.deadline import Deadline, until
from faultline.store.database import Database, run_on
from faultline.store.reads import doctor_queries
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from faultline.store.statement import Statement

T = TypeVar("T")
#: After one question waited in vain for a lock, others would wait for the same one.
_NEXT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class NotSeen:
    """There is no answer: the login lacks the right, the connection is lost, or none came in time."""

    level: Level
    found: str
    todo: str

    def finding(self, name: str) -> Finding:
        return Finding(name.replace("_", " "), self.level, self.found, self.todo)


class Refused(NotSeen):
    """The login may not see it."""


class NothingToSay(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.found)
        self.finding = finding


class ExaminationSession:
    """One connection. `seconds`: how long to wait for an answer; None: no limit."""

    def __init__(self, dsn: str, seconds: float | None) -> None:
        self._seconds = seconds
        self._locked = False
        self._database = Database(dsn, timeout=CONNECT_SECONDS if seconds is None else seconds)
        self._connect()

    def _connect(self) -> None:
        self._connection = self._database.connect()
        self._pid = self._connection.info.backend_pid
        with translated(self._database.dsn), until(self._connection, Deadline(self._seconds)):
            self.pooler = doctor_queries.behind_pooler(self._connection)
            if not self.pooler:
                doctor_queries.lift_limits(self._connection)

    def close(self) -> None:
        self._connection.close()

    def look(self, statement: Statement[T], *, seconds: float = 0.0) -> T | NotSeen:
        """The answer, or why there is none. `seconds`: how long it may take if no lock is in the way."""
        limit = self._seconds
        if limit is not None:
            limit = min(limit, _NEXT_SECONDS) if self._locked else max(limit, seconds)
        try:
            with until(self._connection, Deadline(limit)):
                seen = doctor_queries.look(self._connection, statement)
        except SchemaError as error:
            found, _, todo = str(error).partition("; ")
            return NotSeen(Level.WRONG, found, todo)
        except (DatabaseUnavailable, OutcomeUnknown) as error:  # all questions only read
            if not self._connection.closed or limit is None:
                raise
            in_the_way = self._in_the_way()
            self._locked = self._locked or bool(in_the_way)
            return _unanswered(str(error).partition(" while ")[0], in_the_way)
        if isinstance(seen, doctor_queries.Unseen):
            todo = "to check it: grant faultline_viewer to this login, which must inherit it, or run it as the owner"
            return Refused(Level.NOTE, f"not checked: {seen.why}", todo)
        if isinstance(seen, doctor_queries.CutShort):
            todo = "give it more time: PGOPTIONS='-c statement_timeout=0 -c lock_timeout=0' faultline doctor"
            return NotSeen(Level.WARNING, f"{seen.why}, so it was not checked", todo)
        return seen

    def must(self, statement: Statement[T]) -> T:
        """What every login may see, and without which the doctor cannot go on."""
        seen = self.look(statement)
        if isinstance(seen, NotSeen):
            raise NothingToSay(seen.finding(statement.name))
        return seen

    def list_of(self, name: str, statement: Statement[list[T]]) -> Generator[tuple[str, Finding], None, list[T] | None]:
        """The answer, for several checks; None, and a finding, if there is none."""
        seen = self.look(statement)
        if isinstance(seen, NotSeen):
            yield "work", seen.finding(name)
            return None
        return seen

    def about(
        self, check: Callable[..., Iterator[Finding]], statement: Statement[Any], *more: Any, **words: Any
    ) -> Iterator[Finding]:
        """The findings of a check; or that there is no answer."""
        seen = self.look(statement)
        if isinstance(seen, NotSeen):
            yield seen.finding(statement.name)
        else:
            yield from check(seen, *more, **words)

    def _in_the_way(self) -> Sequence[doctor_queries.InTheWay]:
        """Connect anew, ask who blocks the abandoned session, and end that session, which would wait on."""
        given_up, pooler = self._pid, self.pooler
        self._connect()
        if pooler:
            return ()  # the number is the pooler's, not a session's here
        with until(self._connection, Deadline(self._seconds)):
            found = run_on(self._connection, doctor_queries.in_the_way(given_up))
            run_on(self._connection, doctor_queries.give_up_waiting(given_up))
        return found


def _unanswered(why: str, in_the_way: Sequence[doctor_queries.InTheWay]) -> NotSeen:
    if not in_the_way:
        return NotSeen(
            Level.WARNING, f"{why}, so it was not checked", "give it more time: FAULTLINE_TIMEOUT=600 faultline doctor"
        )
    others = "; ".join(
        f"process {one.pid} ({one.application or 'no name'}, login {one.login}, {one.state or 'state hidden'}, "
        f"transaction open for {one.seconds or 0:.0f} s)"
        for one in in_the_way
    )
    ends = ", ".join(f"pg_terminate_backend({one.pid})" for one in in_the_way)
    return NotSeen(
        Level.WRONG, f"{why}: it waits for a lock held by {others}", f"let that transaction end, or: select {ends}"
    )
