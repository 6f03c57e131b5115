"""Connections of Django, `django.db.connection` and `connections["other"]`, with psycopg or psycopg2.

The job's transaction is an outermost `atomic` block: inside one, Django itself refuses `commit` and `rollback`. Without
autocommit, the end of such a block only releases a savepoint, so the transaction around it is ended here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy
from psycopg.pq import TransactionStatus

from faultline.core.errors import ConfigError
from faultline.store.external_sessions import drivers
from faultline.store.external_sessions.adapter import Joined, plain, with_uuids

if TYPE_CHECKING:
    from faultline.store.statement import Rows


def adapted(session: Any) -> Joined | None:
    if isinstance(session, ConnectionProxy):
        session = session._connections[session._alias]  # noqa: SLF001 - of this thread, as each of its own uses has it
    return _Blocking(session) if isinstance(session, BaseDatabaseWrapper) else None


class _RolledBack(Exception):
    pass


class _Blocking(Joined):
    def __init__(self, given: BaseDatabaseWrapper) -> None:
        super().__init__(given)
        self.what = f"the Django connection {given.alias!r}"
        if given.vendor != "postgresql":
            raise ConfigError(f"{self.what} uses {given.vendor}; jobs live in PostgreSQL")
        self._atomic: Any = None
        self._was_autocommit = True

    @property
    def is_alone(self) -> bool:
        return bool(self.given.get_autocommit())

    def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        with self.given.cursor() as cursor:
            cursor.execute(sql, plain(params) or None)
            return with_uuids(cursor.fetchall(), cursor.description)

    def begin(self) -> None:
        if self.given.in_atomic_block:
            raise ConfigError(f"{self.what} is inside an atomic block; begin the job's transaction outside")
        self._was_autocommit = self.may_begin_again = bool(self.given.get_autocommit())
        self._atomic = transaction.atomic(using=self.given.alias, durable=True)
        self._atomic.__enter__()

    def commit(self) -> None:
        atomic, self._atomic = self._atomic, None
        atomic.__exit__(None, None, None)
        if not self._was_autocommit:
            try:
                self.given.commit()
            except Error:
                # As Django does where it commits itself. The next use connects anew.
                self.given.close()
                raise

    def roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            error = _RolledBack()
            atomic.__exit__(type(error), error, None)
        if not self._was_autocommit:
            self.given.rollback()

    @property
    def transaction_status(self) -> TransactionStatus:
        if self.given.connection is None:
            return TransactionStatus.UNKNOWN
        return TransactionStatus.INERROR if self.given.needs_rollback else drivers.status(self.given.connection)

    @property
    def closed(self) -> bool:
        return self.given.connection is None or drivers.is_closed(self.given.connection)

    def fileno(self) -> int:
        return drivers.fileno(self.given.connection)
