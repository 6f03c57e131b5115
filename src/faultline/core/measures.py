"""What workers count for each queue, each declared once: its column in `faultline.tallies`, its metric, and what it means.

A new one is a field here, a migration that adds its column, its name in `tally` (SQL), and the line of the worker that
counts it. What is sent, summed, shown to Prometheus and listed in the documentation follows from the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple


class Measure(NamedTuple):
    """One count as a metric."""

    #: The field and the column.
    name: str
    #: Behind `faultline_` in what a process tells of itself, behind `faultline_queue_` in what all of them did.
    metric: str
    help: str
    #: How a process tells of its own: for each queue, all queues together, or (None) in another way.
    of_process: Literal["queue", "sum"] | None
    #: Whether the sum over all workers is told for each queue.
    of_database: bool


def _counted(
    metric: str, told: str, *, of_process: Literal["queue", "sum"] | None = "queue", of_database: bool = True
) -> Any:
    return field(default=0, metadata={"metric": metric, "help": told, "of_process": of_process, "of_database": of_database})


@dataclass(slots=True)
class Counted:
    """How often something happened. Each number only grows."""

    started: int = _counted("jobs_started", "Attempts started.")
    succeeded: int = _counted("jobs_succeeded", "Jobs succeeded.")
    failed: int = _counted("jobs_failed", "Jobs failed, with no attempt left.")
    retried: int = _counted("jobs_rescheduled", "Attempts failed and rescheduled.")
    released: int = _counted("jobs_released", "Jobs released unfinished.")
    lost: int = _counted(
        "leases_lost",
        "Leases lost, or given up because they could not be renewed in time.",
        of_process="sum",
        of_database=False,
    )
    recovered: int = _counted(
        "jobs_requeued", "Jobs requeued after their lease expired or their worker died.", of_process="sum"
    )
    #: A process tells of these by verb and reason.
    refused: int = _counted("stale_writes_blocked", "Stale writes refused by the database.", of_process=None)


MEASURES = tuple(Measure(one.name, **one.metadata) for one in fields(Counted))
COUNTS = tuple(measure.name for measure in MEASURES)
