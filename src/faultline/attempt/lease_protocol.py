"""What a running job needs of its lease. A worker's `HeldLease` implements it, so `app` does not import the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from faultline.core.model import Lease


class Refusals(Protocol):
    @property
    def queue(self) -> str: ...

    def refuse(self, verb: str, reason: str) -> None: ...


class Held(Protocol):
    """A lease that a worker holds, as its job sees it."""

    #: When a renewal last found the row locked by the job's own transaction.
    busy_at: float | None
    #: What the database raised in the job's own sessions. It does not count against the job.
    failed_by: list[BaseException] | None
    #: The job's own transaction holds the row's lock.
    in_transaction: bool
    #: The job completed itself in its own transaction.
    completed: bool
    #: Calls that its task made and has not awaited; None: it made none.
    unawaited: set[Any] | None

    @property
    def lease(self) -> Lease: ...

    @property
    def counts(self) -> Refusals: ...

    @property
    def state(self) -> dict[str, Any]:
        """What the lifespans of its worker have opened."""

    @property
    def generation(self) -> int:
        """Of the process that has the lease."""

    @property
    def lost(self) -> str | None:
        """Why it was lost; None: it is not."""

    def lose(self, reason: str) -> bool: ...

    def renewed(self, asked_at: float) -> None: ...
