"""One caller's share of the connections that all callers read with. A caller that exceeds it waits.

Without it, one key that reads a few long lists at once would use every connection, and block all others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.store.statement import Statement
    from faultline.web.auth.caller import Caller
    from faultline.web.server.databases import Databases
    from faultline.web.server.readiness import Readiness

T = TypeVar("T")


class Share:
    """`service.read`, for one caller."""

    def __init__(self, databases: Databases, readiness: Readiness) -> None:
        self._databases = databases
        self._readiness = readiness
        self._turns = asyncio.Semaphore(databases.limits.reads_caller_max)

    async def run(self, statement: Statement[T]) -> T:
        return (await self.run_all([statement]))[0]

    async def run_all(self, statements: Sequence[Statement[T]]) -> list[T]:
        limits = self._databases.limits
        try:
            async with asyncio.timeout(limits.connect_seconds):
                await self._turns.acquire()
        except TimeoutError:
            if self._readiness.fault is not None:  # an outage, not the caller, uses up the turns
                raise self._readiness.fault from None
            raise Problem(
                429,
                "TooManyReads",
                f"You have {limits.reads_caller_max} reads in progress; none ended within {limits.connect_seconds:g} s.",
                next_step="Send fewer requests at once.",
                headers={"Retry-After": "2"},
            ) from None
        try:
            return await self._databases.read.run_all(statements)
        finally:
            self._turns.release()


class Shares:
    """The share of each caller that is reading."""

    def __init__(self, databases: Databases, readiness: Readiness) -> None:
        self._databases = databases
        self._readiness = readiness
        self._known: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def of(self, caller: Caller) -> Share:
        share = self._known.get(caller.id)
        if share is None:
            share = self._known[caller.id] = Share(self._databases, self._readiness)
        return share
