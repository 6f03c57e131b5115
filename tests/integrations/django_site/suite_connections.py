"""`drain` closes Django's connections of its threads, and runs wherever Django's tests call it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections

from faultline.integrations.django import application
from faultline.testing import Drained, adrain, drain
from tests.integrations.django_site import tasks
from tests.integrations.django_site.models import Order
from tests.integrations.django_site.suite_backend import FaultlineTestCase


async def enqueue_all() -> None:
    """A task in a thread, an async one that uses the ORM, and two that each need a thread of their own."""
    await tasks.session.aenqueue()
    await tasks.achange.aenqueue((await Order.objects.acreate()).pk)
    await tasks.meet.aenqueue()
    await tasks.meet.aenqueue()


async def drained_below_sync_to_async() -> Drained:
    await enqueue_all()
    try:
        return await sync_to_async(drain)(application(), concurrency=4)
    finally:
        await sync_to_async(connections.close_all)()


class ConnectionTests(FaultlineTestCase):
    def left_open(self, pids: list[int]) -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("select pid from pg_stat_activity where pid = any(%s)", [pids])
            return [pid for (pid,) in cursor.fetchall()]

    def test_drain_leaves_no_connection_open_that_its_tasks_opened(self) -> None:
        results = [tasks.session.enqueue() for _ in range(3)]

        self.assertEqual(drain(application(), concurrency=3).succeeded, 3)

        for result in results:
            result.refresh()
        self.assertEqual(self.left_open([result.return_value for result in results]), [])

    def test_sync_to_async_of_drain_runs_blocking_and_async_tasks(self) -> None:
        self.assertEqual(async_to_sync(drained_below_sync_to_async)(), Drained(succeeded=4))

    def test_sync_to_async_of_drain_does_so_on_an_event_loop_of_asyncio_too(self) -> None:
        with ThreadPoolExecutor(1) as thread:
            drained = thread.submit(lambda: asyncio.run(drained_below_sync_to_async())).result()

        self.assertEqual(drained, Drained(succeeded=4))

    async def test_an_async_test_drains_with_either(self) -> None:
        self.assertEqual(await drained_below_sync_to_async(), Drained(succeeded=4))
        await tasks.session.aenqueue()
        await tasks.achange.aenqueue((await Order.objects.acreate()).pk)

        self.assertEqual(await adrain(application()), Drained(succeeded=2))
