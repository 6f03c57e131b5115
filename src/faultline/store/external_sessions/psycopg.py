"""Connections of psycopg, which the engine uses itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from faultline.store.async_database import arun_on
from faultline.store.database import run_on
from faultline.store.external_sessions.adapter import AsyncJoined, Joined

if TYPE_CHECKING:
    from faultline.store.statement import Statement

T = TypeVar("T")


def adapted(session: Any) -> Joined | AsyncJoined | None:
    if isinstance(session, psycopg.Connection):
        return _Blocking(session)
    return _Async(session) if isinstance(session, psycopg.AsyncConnection) else None


class _Blocking(Joined):
    what = "the psycopg Connection"

    @property
    def is_closed(self) -> bool:
        return bool(self.given.closed)

    @property
    def is_alone(self) -> bool:
        return _is_alone(self.given)

    def run(self, statement: Statement[T]) -> T:
        self.refuse_closed()
        return run_on(self.given, statement)


class _Async(AsyncJoined):
    what = "the psycopg AsyncConnection"

    @property
    def is_closed(self) -> bool:
        return bool(self.given.closed)

    @property
    def is_alone(self) -> bool:
        return _is_alone(self.given)

    async def run(self, statement: Statement[T]) -> T:
        self.refuse_closed()
        return await arun_on(self.given, statement)


def _is_alone(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == TransactionStatus.IDLE
