"""What people and programs do to limits while jobs run: set, reset and read them. Who did it, and why, is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Unpack

from faultline.attempt.unawaited import must_await
from faultline.core.checks import check_queue
from faultline.core.errors import JobRejected
from faultline.core.limits import changed_fields, check_rate
from faultline.operate import limits as operate
from faultline.store.reads import limits as reads

if TYPE_CHECKING:
    from faultline.core.limits import BudgetRecord, LimitFields, LimitRecord, Rate
    from faultline.core.model import Json
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database


class Databases(Protocol):
    """What limits need of an application."""

    @property
    def database(self) -> Database: ...
    @property
    def async_database(self) -> AsyncDatabase: ...


class Limits:
    """The limits of queues and groups at run time: `app.limits`. They hold at once, in all workers."""

    def __init__(self, app: Databases) -> None:
        self._app = app

    def set(
        self,
        queue: str,
        *,
        group: str = "",
        by: str | None = None,
        reason: str | None = None,
        **fields: Unpack[LimitFields],
    ) -> None:
        """Set a limit over what the code declares: it holds until `reset`, whatever is deployed meanwhile.

        Only the given fields change. Raised limits let waiting jobs start at once; lowered ones stop no running job.

        :param queue: Which queue. It is limited from now on.
        :param group: The key of a group, or `*` for each group. Default: the queue as a whole.
        :param by: Who sets it, as for `cancel`.
        :param reason: Recorded in the journal, and shown with the limit.
        :param fields: See `LimitFields`. None is no limit.
        """
        self._app.database.run(operate.set_limit(queue, group, changed_fields(fields), by=by, reason=reason))

    @must_await
    async def aset(
        self,
        queue: str,
        *,
        group: str = "",
        by: str | None = None,
        reason: str | None = None,
        **fields: Unpack[LimitFields],
    ) -> None:
        """`set` for async programs."""
        await self._app.async_database.run(operate.set_limit(queue, group, changed_fields(fields), by=by, reason=reason))

    def reset(self, queue: str, *, group: str = "", by: str | None = None, reason: str | None = None) -> bool:
        """Undo what was set: what the code declares holds again. False: nothing was set there.

        :param queue: Which queue.
        :param group: As for `set`.
        :param by: Who resets it, as for `cancel`.
        :param reason: Recorded in the journal.
        """
        return self._app.database.run(operate.reset_limit(queue, group, by=by, reason=reason))

    @must_await
    async def areset(self, queue: str, *, group: str = "", by: str | None = None, reason: str | None = None) -> bool:
        """`reset` for async programs."""
        return await self._app.async_database.run(operate.reset_limit(queue, group, by=by, reason=reason))

    def set_budget(self, name: str, rate: Rate, *, by: str | None = None, reason: str | None = None) -> None:
        """Set a budget over what the code declares: it holds until `reset_budget`, whatever is deployed meanwhile.

        If more may be taken than before, jobs that wait for it ask again at once.

        :param name: Which budget. One that no code declares is made.
        :param rate: How much may be taken in a given time, as for `app.budget`.
        :param by: Who sets it, as for `cancel`.
        :param reason: Recorded in the journal, and shown with the budget.
        """
        self._app.database.run(operate.set_budget(name, _whole(rate), by=by, reason=reason))

    @must_await
    async def aset_budget(self, name: str, rate: Rate, *, by: str | None = None, reason: str | None = None) -> None:
        """`set_budget` for async programs."""
        await self._app.async_database.run(operate.set_budget(name, _whole(rate), by=by, reason=reason))

    def reset_budget(self, name: str, *, by: str | None = None, reason: str | None = None) -> None:
        """Undo what was set: what the code declares holds again. A budget that no code declares is removed: one that was
        made by hand, or for which nothing is set and which no running worker has in its code any more.

        :param name: Which budget.
        :param by: Who resets it, as for `cancel`.
        :param reason: Recorded in the journal.
        """
        self._app.database.run(operate.reset_budget(name, by=by, reason=reason))

    @must_await
    async def areset_budget(self, name: str, *, by: str | None = None, reason: str | None = None) -> None:
        """`reset_budget` for async programs."""
        await self._app.async_database.run(operate.reset_budget(name, by=by, reason=reason))

    def budgets(self) -> list[BudgetRecord]:
        """All budgets by name, with what is in them now."""
        return self._app.database.run(reads.budgets())

    @must_await
    async def abudgets(self) -> list[BudgetRecord]:
        return await self._app.async_database.run(reads.budgets())

    def read(self, queue: str | None = None) -> list[LimitRecord]:
        """The limits of a queue: its own first, then that of each group, then those of single groups.

        :param queue: Which queue. Default: all queues.
        """
        return self._app.database.run(reads.limits(_named(queue)))

    @must_await
    async def aread(self, queue: str | None = None) -> list[LimitRecord]:
        return await self._app.async_database.run(reads.limits(_named(queue)))


def _whole(rate: Rate) -> dict[str, Json]:
    """What is left out of a rate that is set would be that of the one in force; a `Rate` says all of it."""
    check_rate("the rate of a budget", rate)
    if rate is None:  # callers without a type checker
        raise JobRejected("a budget needs a rate, such as Rate(90_000, per=60); to undo what was set, use reset_budget")
    return rate.stored() | {"burst": rate.burst_jobs}


def _named(queue: str | None) -> str | None:
    check_queue(queue)
    return queue
