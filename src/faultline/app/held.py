"""What a running job needs of its lease. A worker's hold has it; so `app` need not know the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from faultline.core.model import Lease


class Refusals(Protocol):
    """Counts what the database refused to do."""

    def refuse(self, verb: str, reason: str) -> None: ...


class Held(Protocol):
    """A lease in a worker's hands, as its job sees it."""

    #: When a renewal last found the row locked by the job's own transaction.
    busy_at: float | None
    #: What the database raised in the job's own sessions, and must not count against the job.
    failed_by: list[BaseException] | None
    #: The job's own transaction holds the row's lock.
    in_transaction: bool
    #: The job was completed inside its own transaction.
    settled: bool

    @property
    def lease(self) -> Lease: ...

    @property
    def counts(self) -> Refusals: ...

    @property
    def generation(self) -> int:
        """Of the process whose lease it is."""

    @property
    def lost(self) -> str | None:
        """Why it was lost; None while it is not."""

    def lose(self, reason: str) -> bool: ...

    def renewed(self, asked_at: float) -> None: ...
