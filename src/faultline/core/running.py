"""Which job runs here. Every branch of an attempt knows it: asyncio tasks and threads inherit the context.

Costs a job nothing but the setting of one context variable; whoever wants to know reads it.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from faultline.core.model import Lease


class Running(Protocol):
    """A job that runs: a worker's `HeldLease`."""

    #: Calls that its task made and has not awaited; None: it made none.
    unawaited: set[Any] | None

    @property
    def lease(self) -> Lease: ...

    def seen(self) -> Any:
        """What its task and its hooks see of it: an `Attempt`."""


running: ContextVar[Running | None] = ContextVar("running_job", default=None)


def job_fields() -> dict[str, str | int]:
    """What log records say of the job that runs here; empty: none does."""
    found = running.get()
    if found is None:
        return {}
    lease = found.lease
    return {"job_id": str(lease.job_id), "task": lease.task, "attempt": lease.attempt}


class JobFilter(logging.Filter):
    """Adds the attributes `job_id`, `task` and `attempt` to log records: `handler.addFilter(JobFilter())`.

    They are None outside jobs, so that a format may name them. What a record has already stays.
    """

    def __init__(self) -> None:
        super().__init__()

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass.

        :param record: Which gets the attributes.
        """
        fields = job_fields()
        for name in ("job_id", "task", "attempt"):
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True
