"""Connections of asyncpg, also those that its pool lends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from faultline.store.external_sessions.adapter import AsyncJoined, numbered, plain

if TYPE_CHECKING:
    from faultline.store.statement import Rows


def adapted(session: Any) -> AsyncJoined | None:
    return _Async(session) if isinstance(session, asyncpg.Connection | PoolConnectionProxy) else None


class _Async(AsyncJoined):
    what = "the asyncpg connection"

    @property
    def is_closed(self) -> bool:
        try:
            return bool(self.given.is_closed())
        except asyncpg.InterfaceError:
            return True  # it is back in its pool

    @property
    def is_alone(self) -> bool:
        return not self.given.is_in_transaction()

    async def send(self, sql: str, params: tuple[Any, ...]) -> Rows:
        # `fetch`, not `prepare`: behind a pooler the program has turned its statement cache off, which `prepare` ignores.
        return [tuple(record) for record in await self.given.fetch(numbered(sql), *plain(params))]
