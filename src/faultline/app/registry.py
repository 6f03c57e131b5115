"""What a worker needs of an application: its tasks by name, its database and its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from faultline.app.hooks import HookTable
    from faultline.app.queues import QueueResource
    from faultline.app.tasks import Task
    from faultline.core.host import Host
    from faultline.core.limits import Rate
    from faultline.store.statement import Statement
    from faultline.store.verbs.schedules import Declaration


class Registry(Protocol):
    host: Host
    tasks: dict[str, Task[..., Any]]
    enqueued: Counter[str]
    hooks: HookTable

    @property
    def dsn(self) -> str: ...

    def queue_resources(self) -> Mapping[str, QueueResource]: ...

    def budget_rates(self) -> Mapping[str, Rate]: ...

    def subscriptions(self) -> list[Statement[bool]]: ...

    def schedule_declarations(self) -> list[Declaration]: ...

    def queue_declarations(self) -> dict[str, Statement[bool]]: ...

    def budget_declarations(self) -> dict[str, Statement[bool]]: ...
