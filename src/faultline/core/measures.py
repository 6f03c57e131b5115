"""What workers count for each queue, each declared once: its column in `faultline.tallies`, its metric, and its help.

A new one is a field here, a migration that adds its column, its name in `tally` (SQL), and the line of the worker that
counts it. Sending, sums, Prometheus and the documentation follow from the field.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple


class Measure(NamedTuple):
    """One count as a metric."""

    #: The field and the column.
    name: str
    #: Its name after `faultline_` in the metrics of a process, and after `faultline_queue_` in those of the database.
    metric: str
    help: str
    #: How a process reports it: for each queue, for all queues together, or (None) in another way.
    of_process: Literal["queue", "sum"] | None
    #: Whether the sum over all workers is reported for each queue.
    of_database: bool


def _counted(
    metric: str, text: str, *, of_process: Literal["queue", "sum"] | None = "queue", of_database: bool = True
) -> Any:
    return field(default=0, metadata={"metric": metric, "help": text, "of_process": of_process, "of_database": of_database})


@dataclass(slots=True)
class Counted:
    """Counters: each only grows."""

    started: int = _counted("jobs_started", "Attempts started.")
    succeeded: int = _counted("jobs_succeeded", "Jobs succeeded.")
    failed: int = _counted("jobs_failed", "Jobs failed, with no attempt left.")
    rescheduled: int = _counted("jobs_rescheduled", "Attempts failed and rescheduled.")
    released: int = _counted("jobs_released", "Jobs released unfinished.")
    suspended: int = _counted("jobs_suspended", "Jobs suspended: they wait, and hold no lease.")
    programs_changed: int = _counted(
        "programs_changed", "Runs that did not fit the history of their job, because the code of its task has changed."
    )
    expired: int = _counted("jobs_expired", "Jobs that expired: no worker had claimed them in time.")
    lost: int = _counted(
        "leases_lost",
        "Leases lost, or given up because they could not be renewed in time.",
        of_process="sum",
        of_database=False,
    )
    requeued: int = _counted(
        "jobs_requeued", "Jobs requeued after their lease expired or their worker died.", of_process="sum"
    )
    #: A process reports these by verb and reason.
    refused: int = _counted("stale_writes_blocked", "Stale writes refused by the database.", of_process=None)


MEASURES = tuple(Measure(one.name, **one.metadata) for one in fields(Counted))
COUNTS = tuple(measure.name for measure in MEASURES)
