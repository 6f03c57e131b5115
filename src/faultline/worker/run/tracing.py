"""What a worker needs of a tracer. `faultline.integrations.otel` has one if the program has configured OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from faultline.app import tracing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline.core.model import Lease
    from faultline.store.async_database import AsyncDatabase
    from faultline.worker.lease.held_lease import HeldLease
    from faultline.worker.write.endings import Ending


class Tracer(Protocol):
    """The spans of one worker's attempts."""

    async def fetch(self, database: AsyncDatabase, leases: Sequence[Lease]) -> None:
        """Read the contexts of claimed jobs. The jobs run even if that fails."""

    def begin(self, hold: HeldLease) -> None:
        """Begin the span of an attempt and make it current."""

    def end(self, hold: HeldLease, ending: Ending | None, raised: BaseException | None) -> None:
        """End the span of an attempt, with the exception that the task raised."""


def configured() -> Tracer | None:
    """None: nothing is to be traced."""
    otel = tracing.integration()
    tracer: Tracer | None = None if otel is None else otel.configured()
    return tracer
