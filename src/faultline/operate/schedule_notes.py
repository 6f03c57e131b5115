"""Schedules that name a task whose code is elsewhere: on which queue its workers serve it, and what looks like a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.cron import days_are_either

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from faultline.core.model import Submission
    from faultline.core.schedules import Rule
    from faultline.store.reads.overview import WorkerLine
    from faultline.store.reads.schedules import ScheduleLine

#: What a job of the code often has, and a command has to name.
_OFTEN_LOST = ("group", "unique", "expires_seconds")


def queue_for(task: str, workers: Sequence[WorkerLine], there: ScheduleLine | None) -> str | None:
    """The queue of a task whose code is elsewhere: the one that living workers which know it serve, if it is exactly one;
    or that of the schedule as it is, if that has the same task.
    """
    queues = _served(task, workers)
    if len(queues) == 1:
        return queues[0]
    return there.queue if there is not None and there.task == task else None


def unsure(task: str, workers: Sequence[WorkerLine]) -> list[str]:
    """What is odd about a job that goes to the queue `default` because nothing says which queue its task has."""
    queues = _served(task, workers)
    if len(queues) < 2 or "default" not in queues:  # noqa: PLR2004 - with one it is sure; without `default`, see doubts
        return []
    others = ", ".join(queue for queue in queues if queue != "default")
    todo = "if the task belongs to one of these, name it, or its limits do not hold"
    return [f"no queue was named: its jobs go to default. Living workers that know {task} also serve {others}; {todo}"]


def changes(name: str, job: Submission, there: ScheduleLine | None) -> list[str]:
    """What somebody should know who changes a schedule that is there already."""
    if there is None:
        return []
    found = []
    lost = [one for one in _OFTEN_LOST if there.job.get(one) is not None and getattr(job, one) is None]
    if lost:
        found.append(f"its job had {', '.join(lost)} before, and no longer has: name what it needs")
    if there.from_code:
        found.append(f"{name} is in the code of workers; this holds instead of that until it is reset")
    return found


def _served(task: str, workers: Sequence[WorkerLine]) -> list[str]:
    return sorted({q for worker in workers if worker.alive and task in (worker.tasks or ()) for q in worker.queues})


def doubts(task: str, queue: str, rule: Rule, workers: Sequence[WorkerLine], now: datetime) -> list[str]:
    """What is odd about such a schedule. It is set all the same: workers may come later."""
    alive = [worker for worker in workers if worker.alive]
    found = []
    if alive and all(worker.tasks is not None and task not in worker.tasks for worker in alive):
        found.append(f"no living worker knows the task {task}; look at its spelling, or start a worker that has it")
    elif alive and all(queue not in worker.queues for worker in alive if task in (worker.tasks or (task,))):
        found.append(f"no living worker that knows {task} serves the queue {queue}; name the queue of the task")
    if rule.at is not None and rule.at <= now:
        found.append("its moment has passed: it makes no job")
    if rule.cron is not None and days_are_either(rule.cron):
        found.append("it names days of the month and of the week: it ticks on either. The first Monday is * * mon#1")
    return found
