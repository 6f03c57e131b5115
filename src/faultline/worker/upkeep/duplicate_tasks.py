"""Two applications of one program with a task of the same name: either of them may run the other's jobs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faultline.app.registry import Registry
    from faultline.app.tasks import Task

#: The applications of this program that have had a worker.
_serving: WeakSet[Registry] = WeakSet()


def log_namesakes(app: Registry, queues: Iterable[str]) -> None:
    """Log the tasks that another application with a worker has too, in the same queue and with another function.

    Not an error: a program may play two builds of one application, as tests of a deployment do.
    """
    served = set(queues)
    for other in _serving:
        # One that is closed serves nothing, and to ask for its DSN would open it.
        if other is app or vars(other).get("dsn") != app.dsn:
            continue
        for name, task in app.tasks.items():
            same = other.tasks.get(name)
            if same is not None and same.queue == task.queue and task.queue in served and _written(same) != _written(task):
                events.emit(
                    "task_name_shared", task=name, queue=task.queue, function=_written(task), other_function=_written(same)
                )
    _serving.add(app)


def _written(task: Task[..., Any]) -> str:
    """Where its function is written."""
    fn = inspect.unwrap(task.fn)
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
