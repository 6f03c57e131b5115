"""What every adapter shares: run a statement, and raise our errors where the library raised its own."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar
from uuid import UUID

from psycopg.pq import TransactionStatus

from faultline.core.errors import ConfigError
from faultline.store.external_sessions.translation import as_psycopg, unanswered_alone
from faultline.store.translation import connection_was_lost, ours_for

if TYPE_CHECKING:
    from faultline.store.statement import Rows, Statement

T = TypeVar("T")
_UUID_OID = 2950
_PARAMETER = re.compile(r"%s(::\w+(?:\[\])?)?")


class _Adapter:
    """`what`: how to call it in messages. `given`: the caller's own object."""

    what: str = ""
    #: Nothing of the caller's is in the transaction yet: if its connection turns out to be dead, it can begin on another.
    may_begin_again = False

    def __init__(self, given: Any) -> None:
        self.given = given

    @property
    def is_closed(self) -> bool:
        """Nothing can be sent through it any more."""
        return False

    @property
    def was_rolled_back(self) -> bool:
        """The job's transaction is gone, and nothing of it was committed."""
        return False

    @property
    def is_alone(self) -> bool:
        """No transaction is open, and none will be: each statement commits itself."""
        return False

    @property
    def transaction_status(self) -> TransactionStatus:
        return TransactionStatus.UNKNOWN

    @property
    def info(self) -> _Adapter:
        """Where a psycopg connection has its status."""
        return self

    @property
    def closed(self) -> bool:
        return self.is_closed

    def refuse_closed(self) -> None:
        if self.is_closed:
            raise ConfigError(f"{self.what} is closed; nothing was sent. Join a transaction before its session is closed")

    def refuse_halves(self, statements: int) -> None:
        """All or none: several statements need a transaction around them."""
        if statements > 1 and self.is_alone:
            raise ConfigError(
                f"{self.what} has no transaction: each of the {statements} statements would commit by itself. Begin one"
            )

    def no_transactions(self) -> NoReturn:
        raise ConfigError(
            f"job.transaction(session) takes a session of SQLAlchemy or Django, not {self.what}; job.transaction() without"
            " one gives you a psycopg connection"
        )

    def raise_ours(self, error: Exception, statement: Statement[Any], *, alone: bool) -> NoReturn:
        """Our error for one of the database; any other passes unchanged."""
        same = as_psycopg(error)
        if same is None:
            raise error
        if alone and connection_was_lost(same):
            raise unanswered_alone(statement, same) from error
        ours = ours_for(same)
        if ours is None:
            raise error
        raise ours from error


class Joined(_Adapter):
    """A blocking session of the caller."""

    def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        raise NotImplementedError

    def run(self, statement: Statement[T]) -> T:
        """Run a statement in the caller's transaction, without a commit."""
        self.refuse_closed()
        alone = self.is_alone
        try:
            rows = self.send(statement.sql, statement.params)
        except Exception as error:  # noqa: BLE001 - each library has its own
            self.raise_ours(error, statement, alone=alone)
        return statement.read(rows)

    def begin(self) -> None:
        self.no_transactions()

    def commit(self) -> None:
        self.no_transactions()

    def roll_back(self) -> None:
        self.no_transactions()

    def flush(self) -> None:
        """Send what the session still holds back."""

    def end(self) -> None:
        """The job's transaction is over: the session is the caller's again."""

    def execute(self, word: str) -> None:
        """Begin or end the job's transaction, as on a connection of the engine."""
        {"begin": self.begin, "commit": self.commit, "rollback": self.roll_back}[word]()

    def close(self) -> None:
        """The session is the caller's: it is not ours to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class AsyncJoined(_Adapter):
    """An async session of the caller."""

    async def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        raise NotImplementedError

    async def run(self, statement: Statement[T]) -> T:
        self.refuse_closed()
        alone = self.is_alone
        try:
            rows = await self.send(statement.sql, statement.params)
        except Exception as error:  # noqa: BLE001 - each library has its own
            self.raise_ours(error, statement, alone=alone)
        return statement.read(rows)

    async def begin(self) -> None:
        self.no_transactions()

    async def commit(self) -> None:
        self.no_transactions()

    async def roll_back(self) -> None:
        self.no_transactions()

    async def flush(self) -> None: ...

    def end(self) -> None: ...

    async def execute(self, word: str) -> None:
        await {"begin": self.begin, "commit": self.commit, "rollback": self.roll_back}[word]()

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()


def plain(params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parameters that every driver can send: psycopg2 knows no UUID, and a program may change how asyncpg writes it."""
    return tuple(str(one) if isinstance(one, UUID) else one for one in params)


@lru_cache(maxsize=256)
def numbered(sql: str) -> str:
    """With `$1` for `%s`. Arrays and JSON are sent as text, which the program's own codecs do not change."""
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        cast = found[1] or ""
        return f"${count}{cast}" if cast in ("", "::text") else f"${count}::text{cast}"

    return _PARAMETER.sub(number, sql)


def with_uuids(rows: Any, description: Any) -> Rows:
    """Rows as psycopg would give them: psycopg2 returns a UUID as text."""
    at = [index for index, column in enumerate(description or ()) if column[1] == _UUID_OID]
    if not at:
        return [tuple(row) for row in rows]
    found: Rows = []
    for row in rows:
        values = list(row)
        for index in at:
            one = values[index]
            values[index] = one if one is None or isinstance(one, UUID) else UUID(str(one))
        found.append(tuple(values))
    return found
