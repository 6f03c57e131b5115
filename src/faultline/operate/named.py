"""Schedules that name a task whose code is elsewhere: on which queue its workers serve it, and what looks like a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.cron import days_are_either

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from faultline.core.schedules import Rule
    from faultline.store.reads.overview import WorkerLine


def served_on(task: str, workers: Sequence[WorkerLine]) -> str | None:
    """The queue that the living workers which know this task serve, if it is exactly one."""
    queues = {queue for worker in workers if worker.alive and task in (worker.tasks or ()) for queue in worker.queues}
    return queues.pop() if len(queues) == 1 else None


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
