"""Connections of psycopg2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg2.extensions
from psycopg.pq import TransactionStatus

from faultline.store.external_sessions.adapter import Joined, plain, with_uuids

if TYPE_CHECKING:
    from faultline.store.statement import Rows


def adapted(session: Any) -> Joined | None:
    return _Blocking(session) if isinstance(session, psycopg2.extensions.connection) else None


class _Blocking(Joined):
    what = "the psycopg2 connection"

    @property
    def is_closed(self) -> bool:
        return bool(self.given.closed)

    @property
    def is_alone(self) -> bool:
        return bool(self.given.autocommit) and self.given.info.transaction_status == TransactionStatus.IDLE

    def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        # A plain cursor: that of the program may return dicts.
        with self.given.cursor(cursor_factory=psycopg2.extensions.cursor) as cursor:
            cursor.execute(sql, plain(params) or None)
            return with_uuids(cursor.fetchall(), cursor.description)
