"""What a program asks of its own history, and how it goes through the results of very many jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from faultline.core.bounds import SPAWN_CHUNK
from faultline.core.errors import ConfigError
from faultline.flow.budgets import Takes
from faultline.flow.children import Called
from faultline.flow.usage_errors import check_items, check_policy, check_task
from faultline.history.calls import stoppable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from faultline.flow.task_protocol import OneArgumentTask
    from faultline.history.calls import Call

T = TypeVar("T")
R = TypeVar("R")


class Programs(Takes):
    """How a program guards a change, and reads page by page."""

    async def _run_patch(self, call: Call[Any]) -> bool:
        branch, name = call.branch, call.name
        program = branch.program
        program.answered(name)
        program.refuse_if_ended(branch)
        await self._know(program)
        since = program.patched_from(branch, name)
        if since is not None:
            return branch.counter >= since
        if program.is_behind(branch):
            return False
        number, after = program.patch(branch, name)
        recorded = {"number": number, "kind": "patch", "name": name, "outcome": "done", "result": {"after": after}}
        if self._is_in_transaction():
            # The transaction may roll back, and the program goes on with what it was told.
            program.defer(branch, recorded)
        await self._record_here(branch, recorded)
        return True

    @overload
    def results(
        self,
        task: OneArgumentTask[T, R],
        items: Iterable[T],
        *,
        on_failure: Literal["raise", "fast"] = "raise",
        page: int = ...,
    ) -> AsyncIterator[R]: ...
    @overload
    def results(
        self, task: OneArgumentTask[T, R], items: Iterable[T], *, on_failure: Literal["keep"], page: int = ...
    ) -> AsyncIterator[R | None]: ...
    async def results(
        self, task: OneArgumentTask[T, R], items: Iterable[T], *, on_failure: str = "raise", page: int = SPAWN_CHUNK
    ) -> AsyncIterator[Any]:
        """One child for each item; their results as they come, page by page in the order of the items.

        All are enqueued at once. Only one page of results is in memory, so there may be very many.

        :param task: Called with one item each.
        :param items: The items. A later run must give the same ones.
        :param on_failure: When a child has failed: `raise` raises `ChildFailed` when all of its page have ended, `fast` at
            once, `keep` gives None as its result.
        :param page: How many results are waited for together, 1 to 1,000.
        """
        check_policy(on_failure)
        if not 1 <= page <= SPAWN_CHUNK:
            raise ConfigError(f"page must be a whole number from 1 to {SPAWN_CHUNK}, not {page!r}")
        check_task(f"job {self.id}: ", "job.results", task)
        check_items(self.id, "job.results", items)
        jobs = [task.bind(item) for item in items]
        pages = [jobs[first : first + page] for first in range(0, len(jobs), page)]
        calls: list[Call[Any]] = [
            self._make("children", one[0].task, one, Called(one, on_failure, task.returns)) for one in pages
        ]
        for call in calls:
            with stoppable(call.branch, call.shown):
                await self._spawned(call, await self._arrived(call))
        for call in calls:
            for result in await call.now():
                yield result
