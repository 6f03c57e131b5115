"""Publish to topics, and say which tasks they enqueue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from faultline.store import jsontext
from faultline.store.rows import Column, RowOf, value
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from faultline.core.model import Json


class Published(NamedTuple):
    """The job of one subscribed task."""

    task: str
    queue: str
    job_id: UUID
    created: bool


class Subscription(NamedTuple):
    """A task that a topic enqueues, with the options of its jobs."""

    topic: str
    task: str
    options: Json
    #: The fields of a payload that become arguments; None: all.
    takes: list[str] | None
    subscribed_at: datetime


_PUBLISHED = RowOf(Published)
#: In a caller's session: see `submit`.
_PUBLISHED_THERE = RowOf(Published, job_id=Column("job_id::text", UUID))
_SUBSCRIPTION = RowOf(Subscription)


def publish(
    topic: str,
    payload: str,
    *,
    idempotency_key: str | None = None,
    trace: str | None = None,
    id: UUID | None = None,  # noqa: A002 - as SQL calls it
    appears_late: bool = False,
) -> Statement[list[Published]]:
    """Enqueue one job for every subscribed task. `id` makes it repeatable: the ids of the jobs follow from it."""
    columns = _PUBLISHED_THERE if appears_late else _PUBLISHED
    return Statement(
        name="publish",
        sql=f"select {columns.columns} from faultline.publish(%s, %s::text, %s, %s, %s, %s)",
        params=(topic, payload, idempotency_key, trace, appears_late, id),
        read=columns.many,
        repeatable=id is not None or idempotency_key is not None,
        often=True,
    )


def subscribe(
    topic: str,
    task: str,
    options: dict[str, Json],
    takes: Sequence[str] | None,
    *,
    reason: str | None = None,
    by: str | None = None,
) -> Statement[bool]:
    """Subscribe a task, or change its options. Returns whether this changed anything."""
    return Statement(
        name="subscribe",
        sql="select faultline.subscribe(%s, %s, %s::jsonb, %s::text[], %s, %s)",
        params=(
            topic,
            task,
            jsontext.encode(options, f"options of {task}"),
            None if takes is None else list(takes),
            reason,
            by,
        ),
        read=value,
        repeatable=True,
    )


def unsubscribe(topic: str, task: str, *, reason: str | None = None, by: str | None = None) -> Statement[bool]:
    """End a subscription. Returns whether there was one."""
    sql, params = "select faultline.unsubscribe(%s, %s, %s, %s)", (topic, task, reason, by)
    return Statement("unsubscribe", sql, params, value, repeatable=True)


def subscriptions() -> Statement[list[Subscription]]:
    """All of them, by topic."""
    return Statement(
        name="subscriptions",
        sql=f"select {_SUBSCRIPTION.columns} from faultline.subscriptions order by topic, task",
        params=(),
        read=_SUBSCRIPTION.many,
        repeatable=True,
        reads=True,
    )
