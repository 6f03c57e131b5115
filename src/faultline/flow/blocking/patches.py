# Generated from src/faultline/flow/patches.py by `make generate`: change that file, not this one.
"""What a program asks of its own history, and how it goes through the results of very many jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from faultline.core.bounds import SPAWN_CHUNK
from faultline.core.errors import ConfigError
from faultline.flow.blocking.budgets import Takes
from faultline.flow.blocking.children import Called
from faultline.flow.usage_errors import check_items, check_policy, check_task
from faultline.history.calls import stoppable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from faultline.flow.task_protocol import OneArgumentTask
    from faultline.history.calls import BlockingCall

T = TypeVar("T")
R = TypeVar("R")


class Programs(Takes):
    """How a program guards a change, and reads page by page."""

    def _run_patch(self, call: BlockingCall[Any]) -> bool:
        branch, name = call.branch, call.name
        program = branch.program
        program.answered(name)
        program.refuse_if_ended(branch)
        self._know(program)
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
        self._record_here(branch, recorded)
        return True

    @overload
    def results(
        self,
        task: OneArgumentTask[T, R],
        items: Iterable[T],
        *,
        on_failure: Literal["raise", "fast"] = "raise",
        page: int = ...,
    ) -> Iterator[R]: ...
    @overload
    def results(
        self, task: OneArgumentTask[T, R], items: Iterable[T], *, on_failure: Literal["keep"], page: int = ...
    ) -> Iterator[R | None]: ...
    def results(
        self, task: OneArgumentTask[T, R], items: Iterable[T], *, on_failure: str = "raise", page: int = SPAWN_CHUNK
    ) -> Iterator[Any]:
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
        calls: list[BlockingCall[Any]] = [
            self._make("children", one[0].task, one, Called(one, on_failure, task.returns)) for one in pages
        ]
        for call in calls:
            with stoppable(call.branch, call.shown):
                self._spawned(call, self._arrived(call))
        for call in calls:
            yield from call.now()
