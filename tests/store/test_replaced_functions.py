"""A migration replaces functions while clients call them: a call that meets the gap is sent again, once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from faultline.core.errors import SchemaBehind
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.core.ids import Ids
from faultline.core.model import Submission
from faultline.store import verbs
from faultline.store.async_database import AsyncDatabase
from faultline.store.database import Database

if TYPE_CHECKING:
    from tests.driver import Driver


class Gap(Faults):
    """A step of `enqueue_one` is away for the first sends, as for a call that a migration has overtaken."""

    wanted = True

    def __init__(self, queue: Driver, sends: int) -> None:
        self._queue = queue
        self._left = sends
        self.sent = 0

    def reach(self, point: str) -> None:
        if point == "before_enqueue_sent":
            self.sent += 1
            self._left -= 1
            if self.sent == 1:
                self._queue.connection.execute("alter function faultline.insert_one rename to away")
            if self._left < 0:
                self._queue.connection.execute("alter function faultline.away rename to insert_one")


def enqueued(dsn: str, gap: Gap, kind: str) -> list[Any]:
    statement = verbs.enqueue_many([Submission("t", "{}")], Ids())

    async def run() -> list[Any]:
        database = AsyncDatabase(dsn, host=Host(faults=gap))
        try:
            return await database.run(statement)
        finally:
            await database.close()

    if kind == "async":
        return asyncio.run(run())
    with contextlib.closing(Database(dsn, host=Host(faults=gap))) as database:
        return database.run(statement)


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_call_that_a_migration_has_overtaken_is_sent_again(queue: Driver, dsn: str, kind: str) -> None:
    gap = Gap(queue, sends=1)

    (placed,) = enqueued(dsn, gap, kind)

    assert (gap.sent, placed.created) == (2, True)
    assert queue.value("select array_agg(id) from faultline.jobs") == [placed.job_id]


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_function_that_stays_away_is_told_after_the_second_try(queue: Driver, dsn: str, kind: str) -> None:
    gap = Gap(queue, sends=9)

    with pytest.raises(SchemaBehind, match=r"insert_one.* does not exist; run: faultline migrate"):
        enqueued(dsn, gap, kind)

    assert gap.sent == 2
    assert queue.value("select count(*) from faultline.jobs") == 0
