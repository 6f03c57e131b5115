"""Queues as a program declares them: their limits, those of their groups, and which tasks go there. Budgets, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from faultline.app.limits import Limits
from faultline.attempt.unawaited import must_await
from faultline.core.bounds import QUEUE_LENGTH_MAX, TASK_LENGTH_MAX
from faultline.core.checks import check_name, check_queue
from faultline.core.errors import ConfigError, declaring
from faultline.core.limits import Limit, Rate, check_budget, check_fields, check_group, check_rate
from faultline.store.verbs import limit
from faultline.store.verbs.budget import declare_budget
from faultline.store.verbs.schedules import declaring_schedules

if TYPE_CHECKING:
    from faultline.app.limits import Databases
    from faultline.app.tasks import Task
    from faultline.core.model import Json
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database
    from faultline.store.statement import Statement
    from faultline.store.verbs.schedules import Declaration


class QueueResource(str):
    """A declared queue, as `app.queue(…)` returns it. It is its name: give it wherever a queue is named.

    :param name: Of the queue.
    """

    __slots__ = ("declared", "match")

    #: What is written to the database: the limits of the queue, of each group, and of single groups.
    declared: dict[str, Json]
    #: Patterns of the names of tasks that go to this queue when they name none.
    match: tuple[str, ...]

    def takes(self, task: str) -> bool:
        """Whether a task that names no queue goes here.

        :param task: Its name.
        """
        return any(fnmatchcase(task, pattern) for pattern in self.match)

    def __repr__(self) -> str:
        return f"<QueueResource {self}>"


class Queues:
    """What an application does with queues."""

    tasks: dict[str, Task[..., Any]]

    if TYPE_CHECKING:

        def schedule_declarations(self) -> list[Declaration]: ...
        def subscriptions(self) -> list[Statement[bool]]: ...

    def __init__(self) -> None:
        super().__init__()
        self._declared: dict[str, QueueResource] = {}
        self._budgets: dict[str, Rate] = {}

    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...
        @property
        def async_database(self) -> AsyncDatabase: ...

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: Rate | None = None,
        each_group: Limit | None = None,
        groups: Mapping[str, Limit] | None = None,
        match: Sequence[str] = (),
    ) -> QueueResource:
        """Declare a queue: what it may do over all workers, and what each group of jobs in it may do.

        A worker of this application writes it to the database when it starts; `app.declare()` does so at once. What people
        set at run time (`app.limits.set`) wins over it until they reset it. A queue that is not declared has no limits.

        :param name: Of the queue, 1 to 100 characters.
        :param concurrency: How many of its jobs may run at once, in all workers together.
        :param rate: How many of its jobs may start in a given time.
        :param each_group: What each group may do: the jobs with the same `group=`. Given even as `Limit()`, groups take
            turns, so that one with many jobs does not keep the others waiting.
        :param groups: What single groups may do, by their keys. What they do not say, they have from `each_group`.
        :param match: Patterns of names of tasks, such as `mail.*`, that go to this queue when they name none. The first
            declared queue that fits gets them.
        """
        with declaring():
            check_name("the name of a queue", name, QUEUE_LENGTH_MAX)
            check_queue(name)
        if name in self._declared:
            raise ConfigError(f"queue {name} is declared already; declare it once, with all its limits")
        found = QueueResource(name)
        found.declared = _declared(name, _whole(name, concurrency, rate), each_group, groups)
        found.match = _patterns(name, match)
        self._declared[str(name)] = found
        for task in self.tasks.values():
            self._route(task)
        return found

    def budget(self, name: str, rate: Rate) -> str:
        """Declare a budget: how much of a resource running jobs may use per period, such as the tokens of a provider.

        Jobs take from it with `job.take(name, cost=…)`, once they know what they are about to use. It is one for all workers
        and queues. A worker of this application writes it to the database when it starts; `app.declare()` does so at once.
        What people set at run time (`app.limits.set_budget`) wins over it until they reset it.

        :param name: Of the budget, 1 to 100 characters. It is what this returns.
        :param rate: How much may be taken in a given time. Its `burst` is the most that there is at any moment.
        """
        with declaring():
            check_budget(name)
        if name in self._budgets:
            raise ConfigError(f"budget {name} is declared already; declare it once")
        if not isinstance(rate, Rate):
            raise ConfigError(f"rate of budget {name} must be a Rate, such as Rate(90_000, per=60), not {rate!r}")
        self._budgets[name] = rate
        return name

    def queue_resources(self) -> Mapping[str, QueueResource]:
        """The declared queues, by their names."""
        return self._declared

    def budget_rates(self) -> Mapping[str, Rate]:
        """The declared budgets, by their names."""
        return self._budgets

    @cached_property
    def limits(self) -> Limits:
        """Set, reset and read limits at run time."""
        return Limits(cast("Databases", self))

    def declare(self) -> int:
        """Write the declared queues, budgets, schedules and subscriptions to the database, as a worker does when it starts.

        Returns how many were new or are declared otherwise now. A schedule ticks once a worker with its code runs.
        """
        wanted = self.declarations()
        return sum(self.database.run_all(wanted)) if wanted else 0

    @must_await
    async def adeclare(self) -> int:
        wanted = self.declarations()
        return sum(await self.async_database.run_all(wanted)) if wanted else 0

    def declarations(self) -> list[Statement[int]]:
        """What writes the declared queues, budgets, schedules and subscriptions. Each returns how many it changed."""
        single = [*self.queue_declarations().values(), *self.budget_declarations().values(), *self.subscriptions()]
        return [*(cast("Statement[int]", one) for one in single), *declaring_schedules(self.schedule_declarations())]

    def queue_declarations(self) -> dict[str, Statement[bool]]:
        """By the names of the queues."""
        return {name: limit.declare_queue(name, one.declared) for name, one in sorted(self._declared.items())}

    def budget_declarations(self) -> dict[str, Statement[bool]]:
        """By the names of the budgets."""
        return {name: declare_budget(name, rate.stored()) for name, rate in sorted(self._budgets.items())}

    def _route(self, task: Task[..., Any]) -> None:
        """Send a task that names no queue to the first that takes it."""
        if task.route.queue is None:
            task.route.queue = next((name for name, one in self._declared.items() if one.takes(task.name)), None)


def _whole(name: str, concurrency: int | None, rate: Rate | None) -> Limit:
    """What the queue as a whole may do. Its name is in the message of what is wrong."""
    with declaring(f"queue {name}"):
        check_rate("rate", rate)
        if concurrency is not None:
            check_fields({"concurrency": concurrency})
    return Limit(concurrency=concurrency, rate=rate)


def _declared(name: str, whole: Limit, each_group: Limit | None, groups: Mapping[str, Limit] | None) -> dict[str, Json]:
    if each_group is not None and not isinstance(each_group, Limit):
        raise ConfigError(f"each_group of queue {name} must be a Limit, such as Limit(concurrency=1), not {each_group!r}")
    if groups is not None and not isinstance(groups, Mapping):
        raise ConfigError(
            f'groups of queue {name} must be limits by keys, such as {{"tenant-7": Limit()}}, not {groups!r:.60}'
        )
    for key, one in (groups or {}).items():
        with declaring():
            check_group(key, f"the key of a group of queue {name}")
        if not isinstance(one, Limit):
            raise ConfigError(f"group {key} of queue {name} must have a Limit, such as Limit(concurrency=1), not {one!r}")
    declared: dict[str, Json] = {}
    if whole.stored():
        declared["queue"] = whole.stored()
    if each_group is not None:
        declared["each_group"] = each_group.stored()
    if groups:
        declared["groups"] = {str(key): one.stored() for key, one in groups.items()}
    return declared


def _patterns(name: str, match: Sequence[str]) -> tuple[str, ...]:
    if isinstance(match, str):
        raise ConfigError(f"match of queue {name} is a list of patterns; write match=({match!r},)")
    if not isinstance(match, Sequence):
        raise ConfigError(f"match of queue {name} must be a list of patterns, such as ('mail.*',), not {match!r:.60}")
    for pattern in match:
        if not isinstance(pattern, str) or not 1 <= len(pattern) <= TASK_LENGTH_MAX:  # type: ignore[redundant-expr]
            raise ConfigError(f"match of queue {name}: a pattern is text such as 'mail.*', not {pattern!r}")
    return tuple(match)
