# Generated from src/faultline/attempt/async_transaction.py by `make generate`: change that file, not this one.
"""The transaction of `job.transaction()`, as its task uses it: psycopg's own types, so that type checkers know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from faultline.attempt.transaction import JobTransaction, guarded_connection

if TYPE_CHECKING:
    from psycopg import Connection, Cursor, ServerCursor
    from psycopg.abc import Params, Query
    from psycopg.rows import RowFactory, TupleRow

RowT = TypeVar("RowT")


class BlockingTransaction(JobTransaction):
    """The transaction of `job.transaction()` in a blocking task. It belongs to the thread that opened it.

    It commits at the end of the `with` block, and rolls back when that raises. To end it inside the block is refused.
    """

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        #: The psycopg connection, with the transaction open and the job's row locked. It cannot end the transaction.
        self.connection: Connection[TupleRow] = guarded_connection(self)

    def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool = False
    ) -> Cursor[TupleRow]:
        """Run a statement, as `connection.execute` of psycopg does: `tx.execute("update …", (1,))`.

        :param query: SQL.
        :param params: The values of its parameters.
        :param prepare: As for psycopg.
        :param binary: As for psycopg.
        """
        execute: Any = self.connection.execute
        found: Cursor[TupleRow] = execute(query, params, prepare=prepare, binary=binary)
        return found

    @overload
    def cursor(self, *, binary: bool = False) -> Cursor[TupleRow]: ...
    @overload
    def cursor(self, *, binary: bool = False, row_factory: RowFactory[RowT]) -> Cursor[RowT]: ...
    @overload
    def cursor(
        self, name: str, *, binary: bool = False, scrollable: bool | None = None, withhold: bool = False
    ) -> ServerCursor[TupleRow]: ...
    @overload
    def cursor(
        self,
        name: str,
        *,
        binary: bool = False,
        row_factory: RowFactory[RowT],
        scrollable: bool | None = None,
        withhold: bool = False,
    ) -> ServerCursor[RowT]: ...
    def cursor(self, name: str = "", **words: Any) -> Cursor[Any] | ServerCursor[Any]:
        """A cursor, as `connection.cursor` of psycopg makes it.

        :param name: Of a cursor on the server.
        :param binary: As for psycopg.
        :param row_factory: As for psycopg: what rows are made of.
        :param scrollable: As for psycopg.
        :param withhold: As for psycopg.
        :param words: As for psycopg: see the overloads.
        """
        made: Any = self.connection.cursor
        found: Cursor[Any] | ServerCursor[Any] = made(name, **words)
        return found
