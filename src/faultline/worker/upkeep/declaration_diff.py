"""Say at a worker's start what its declarations of limits have replaced, and what of them is not in force.

There is one declaration of each queue and budget in a database, and the worker that starts last has the last word. Whoever
loses by that must find it in a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.explain.limits import said
from faultline.store.reads import limits as reads

if TYPE_CHECKING:
    from faultline.app.registry import Registry
    from faultline.core.limits import BudgetRecord, LimitRecord
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.base.counters import Tally

_GROUP_LIMITS = {"concurrency", "rate", "ordered"}
#: A queue may have a thousand groups with limits of their own; the journal has them all.
_LINES_MAX = 20


class Replaced:
    """What is stored before this worker declares, to compare with what is stored after."""

    def __init__(self, database: AsyncDatabase, worker_id: str, app: Registry, tally: Tally) -> None:
        self._database = database
        self._worker_id = worker_id
        self._app = app
        self._tally = tally
        self._declares = bool(app.queue_resources() or app.budget_rates())
        self._before: dict[tuple[str, str], LimitRecord | BudgetRecord] | None = None

    async def before(self) -> None:
        if self._declares:
            self._before = await self._read()

    async def after(self) -> None:
        """Once everything is declared. What could not be read is not compared: the worker starts all the same."""
        self._log_tasks()
        now = await self._read() if self._before is not None else None
        if now is None or self._before is None:
            return
        for key in sorted(now.keys() | self._before.keys())[:_LINES_MAX]:
            was, found = self._before.get(key), now.get(key)
            declared = {} if found is None else found.declared
            replaced = {} if was is None else was.declared
            if declared != replaced:
                events.emit(
                    "limits_declared", **_whose(key), was=said(replaced), limit=said(declared), worker=self._worker_id
                )
            if found is not None and found.declared and found.override:
                events.emit(
                    "limits_overridden",
                    **_whose(key),
                    limit=said(found.declared),
                    in_force=said(found.effective),
                    by=found.changed_by,
                    reason=found.reason,
                    worker=self._worker_id,
                )

    async def _read(self) -> dict[tuple[str, str], LimitRecord | BudgetRecord] | None:
        try:
            limits = await self._database.run(reads.limits())
            budgets = await self._database.run(reads.budgets())
        except Exception:  # noqa: BLE001 - declaring them fails too, and says so
            self._tally.database_failed()
            return None
        queues = self._app.queue_resources()
        found: dict[tuple[str, str], LimitRecord | BudgetRecord] = {
            (one.queue, one.group): one for one in limits if one.queue in queues
        }
        return found | {("", one.name): one for one in budgets if one.name in self._app.budget_rates()}

    def _log_tasks(self) -> None:
        """A task without a group in a queue whose groups have limits: its jobs are under none of these."""
        for name, queue in self._app.queue_resources().items():
            each: dict[str, Any] = queue.declared.get("each_group") or {}
            tasks = sorted(
                task.name for task in self._app.tasks.values() if task.queue == name and task.group_template is None
            )
            if tasks and not _GROUP_LIMITS.isdisjoint(each):
                events.emit("groups_missing", queue=name, tasks=", ".join(tasks[:_LINES_MAX]), worker=self._worker_id)


def _whose(key: tuple[str, str]) -> dict[str, Any]:
    queue, name = key
    return {"queue": queue, "group": name} if queue else {"budget": name}
