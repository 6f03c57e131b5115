"""Topics: a published one enqueues a job for every task that is subscribed to it. Subscriptions are stored in the database,
so a program that publishes needs none of the tasks' code.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from faultline import values
from faultline.app import tracing
from faultline.app.handle import JobHandle
from faultline.app.tasks import Task
from faultline.attempt.options import check_text
from faultline.attempt.unawaited import must_await
from faultline.core.bounds import KEY_LENGTH_MAX, TASK_LENGTH_MAX, TOPIC_LENGTH_MAX
from faultline.core.checks import check_name, check_readable
from faultline.core.errors import ConfigError, JobRejected, declaring
from faultline.core.model import Submission
from faultline.operate import actor
from faultline.operate.actor import logged
from faultline.store.verbs import topics

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from faultline.app.handle import Looks
    from faultline.core.ids import Ids
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.external_sessions import AsyncJoined, Joined
    from faultline.store.statement import Statement
    from faultline.store.verbs.topics import Published

P = ParamSpec("P")
R = TypeVar("R")

#: Options of a task that are one job's own, and not those of all that a topic enqueues.
_OWN = ("idempotency_key", "id", "run_at", "expires_at")


class Topics:
    """What an application does with topics."""

    enqueued: Counter[str]
    _ids: Ids

    def __init__(self) -> None:
        #: The subscriptions of this program's tasks: (topic, name of the task), and the task.
        self._subscribed: dict[tuple[str, str], Task[..., Any]] = {}

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...
        @property
        def async_database(self) -> AsyncDatabase: ...

    def on(self, *names: str) -> Callable[[Task[P, R]], Task[P, R]]:
        """Subscribe a task to topics: `@app.on("order.paid")`, above `@app.task`.

        Every `publish` of such a topic enqueues a job of the task, with its options. The fields of the payload that are
        parameters of the task become its arguments; others are left out, unless it takes `**fields`. A worker writes the
        subscriptions of its tasks to the database when it starts; `app.declare()` does it at once.

        :param names: The topics. 1 to 200 characters each.
        """
        with declaring():
            for name in names:
                _check_topic(name)
        if not names:
            raise ConfigError('name the topic: @app.on("order.paid")')

        def subscribe(task: Task[P, R]) -> Task[P, R]:
            if not isinstance(task, Task):
                raise ConfigError(f"@app.on({names[0]!r}) needs a task, not {task!r}; put it above @app.task")
            for name in names:
                self._subscribed[name, task.name] = task
            return task

        return subscribe

    def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
    ) -> list[JobHandle[Any]]:
        """Enqueue one job for every task that is subscribed to the topic, all or none. No subscriber: no job, and no error.

        :param topic: Which topic.
        :param payload: A dict or a dataclass. Its fields become the arguments of the tasks.
        :param idempotency_key: Published again with the same key, each task gets no second job.
        """
        with tracing.enqueuing([_traced(topic, payload, idempotency_key)]) as [traced]:
            self.database.facts_and_time()
            return self._published(self.database.run(_publish(traced, self._ids)))

    @must_await
    async def apublish(
        self,
        topic: str,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
    ) -> list[JobHandle[Any]]:
        """`publish` for async programs."""
        with tracing.enqueuing([_traced(topic, payload, idempotency_key)]) as [traced]:
            await self.async_database.facts_and_time()
            return self._published(await self.async_database.run(_publish(traced, self._ids)))

    def _publish_in(self, session: Joined, topic: str, payload: Any, key: str | None) -> list[JobHandle[Any]]:
        """`publish` in the transaction of a session."""
        with tracing.enqueuing([_traced(topic, payload, key)]) as [traced]:
            return self._published(session.run(_publish(traced, appears_late=True)))

    async def _apublish_in(self, session: AsyncJoined, topic: str, payload: Any, key: str | None) -> list[JobHandle[Any]]:
        """`_publish_in` for async sessions."""
        with tracing.enqueuing([_traced(topic, payload, key)]) as [traced]:
            return self._published(await session.run(_publish(traced, appears_late=True)))

    def unsubscribe(
        self, topic: str, task: Task[..., Any] | str, *, reason: str | None = None, by: str | None = None
    ) -> bool:
        """End a subscription: the topic enqueues no more jobs of this task. Returns whether there was one.

        Take `@app.on` from the code first: the next worker that has it would subscribe the task again.

        :param topic: Which topic.
        :param task: The task, or its name.
        :param reason: Recorded in the journal.
        :param by: Who ends it, as for `cancel`.
        """
        return self.database.run(_unsubscribe(topic, task, reason, by))

    @must_await
    async def aunsubscribe(
        self, topic: str, task: Task[..., Any] | str, *, reason: str | None = None, by: str | None = None
    ) -> bool:
        return await self.async_database.run(_unsubscribe(topic, task, reason, by))

    def subscriptions(self) -> list[Statement[bool]]:
        """What writes the subscriptions of this program's tasks."""
        return [
            topics.subscribe(topic, task.name, _options(task), _taken(task), reason="@app.on")
            for (topic, _), task in sorted(self._subscribed.items(), key=lambda one: one[0])
        ]

    def _published(self, published: list[Published]) -> list[JobHandle[Any]]:
        self.enqueued.update([one.queue for one in published if one.created])
        return [JobHandle(cast("Looks", self), one.job_id, created=one.created) for one in published]


def _publish(job: Submission, ids: Ids | None = None, *, appears_late: bool = False) -> Statement[list[Published]]:
    key = job.idempotency_key
    own = None if ids is None or key is not None else ids.new()
    return topics.publish(job.task, job.args, idempotency_key=key, trace=job.trace, id=own, appears_late=appears_late)


def _unsubscribe(topic: str, task: Task[..., Any] | str, reason: str | None, by: str | None) -> Statement[bool]:
    actor.check(by, reason)
    _check_topic(topic)
    name = task.name if isinstance(task, Task) else task
    check_name("the task", name, TASK_LENGTH_MAX)
    statement = topics.unsubscribe(topic, name, reason=reason, by=by)
    return logged(statement, "task_unsubscribed", done=bool, topic=topic, task=name, by=by, reason=reason)


def _traced(topic: str, payload: Any, key: str | None) -> Submission:
    """What is published, as a span of an enqueue shows it: the topic in the place of a task."""
    _check_topic(topic)
    check_text("idempotency_key", key, KEY_LENGTH_MAX)
    # A dataclass has named fields too.
    fields = {} if payload is None else payload if isinstance(payload, Mapping) else values.plain(payload)
    try:
        named = dict(fields)
    except (TypeError, ValueError):
        named = None
    if named is None or isinstance(payload, str | list):
        raise JobRejected(
            f"the payload of topic {topic} must be a dict or a dataclass, whose fields become arguments of the tasks, not"
            f" {payload!r:.80}"
        )
    return Submission(topic, values.args_text(named, f"payload of topic {topic}"), idempotency_key=key)


def _check_topic(name: str) -> None:
    check_name("the name of a topic", name, TOPIC_LENGTH_MAX)
    check_readable("the name of a topic", name, trimmed=True)


def _options(task: Task[..., Any]) -> dict[str, Any]:
    """The options that all jobs of the task share."""
    given = {name: found for name, found in task.submitted().items() if found is not None and name not in _OWN}
    template = task.group_template
    return given if template is None else given | {"group": template.stored()}


def _taken(task: Task[..., Any]) -> list[str] | None:
    parameters = task.signature.parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters]
