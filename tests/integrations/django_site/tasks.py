"""Tasks as a Django project has them."""

from __future__ import annotations

import threading
from collections.abc import Callable  # noqa: TC003 - as in any project
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.models import F

from faultline import Cancel, Fail, Retry
from faultline.integrations.django import atomic
from faultline.integrations.django.compat import TaskContext  # noqa: TC001 - as in any project
from tests.integrations.django_site.models import Order

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

declare = task
both = threading.Barrier(2)
#: What `charge_once` does the next time it runs, by where.
steps: dict[str, Callable[[], object]] = {}
#: What the tasks saw, for tests that run them in this process.
seen: list[Any] = []


def _nothing() -> None: ...


class CardDeclined(Exception):
    pass


@task
def charge(order_id: int, amount: int = 100) -> dict[str, int]:
    Order.objects.filter(pk=order_id).update(paid=amount)
    return {"paid": amount}


@task
async def achange(order_id: int) -> int:
    changed: int = await Order.objects.filter(pk=order_id).aupdate(paid=7)
    return changed


@task
async def meet() -> None:
    """Two of these end together: each in the thread that Django's blocking code has."""
    await sync_to_async(both.wait)(10)


@task
def charge_once(order_id: int) -> str:
    """What the ORM writes and the end of the job commit together."""
    steps.pop("before", _nothing)()
    with atomic() as tx:
        Order.objects.filter(pk=order_id).update(paid=F("paid") + 100)
        steps.pop("inside", _nothing)()
        tx.complete("charged")
    steps.pop("after", _nothing)()
    return "not this"


@task
async def acharge_once() -> None:
    with atomic():
        pass


@task(takes_context=True)
def look(context: TaskContext) -> list[Any]:
    result = context.task_result
    seen.append(result)
    if context.attempt < 2:
        raise CardDeclined("not yet")
    return [context.attempt, str(result.status), len(result.errors)]


@task(queue_name="mail", priority=5)
def mail(to: str) -> str:
    seen.append(to)
    return to


def _renamed() -> None: ...


renamed = task(_renamed)


@task
def decline() -> None:
    raise CardDeclined("no money")


@task(backend="once")
def decline_once() -> None:
    raise CardDeclined("no money\n  at all")


@task
def call_off() -> None:
    raise Cancel("not wanted")


@task
def give_up() -> None:
    raise Fail("no such order")


@task(backend="once")
def later() -> None:
    raise Retry(60)


@task
def unstorable() -> object:
    seen.append("worked")
    return object()


@task
def session() -> int:
    """The server's process of this thread's connection."""
    with connections["default"].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        seen.append(connections["default"])
        pid: int = cursor.fetchone()[0]
    return pid
