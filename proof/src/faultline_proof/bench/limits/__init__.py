"""What limits, groups and schedules cost, beside queues and systems without them. What is compared is measured in turns.

Each part has a scratch database of its own, and can be measured alone. A part that fails is told as such, and the others are
measured all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.errors import ConfigError
from faultline.store import scratch
from faultline.store.database import Database
from faultline_proof.bench.limits import calls, workers
from faultline_proof.bench.limits.effort import QUICK, Effort
from faultline_proof.bench.protocol import Figure
from faultline_proof.bench.report import Report, machine

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: dict[str, Callable[[str, Effort], list[Figure]]] = {
    "queue": workers.queue,
    "groups": calls.groups,
    "noops": workers.noops,
    "hot": calls.hot,
    "held": calls.held,
    "maintain_limits": calls.maintain_limits,
    "schedules": workers.schedules,
    "crowd": workers.beside_no_limit,
}


def measure(
    dsn: str, *, effort: Effort | None = None, quick: bool = False, only: str = "", tell: Callable[[str], None] = print
) -> Report:
    """All parts, or one of them."""
    effort = effort or (QUICK if quick else Effort())
    if only and only not in PARTS:
        raise ConfigError(f"unknown part {only} of limits; choose one of: {', '.join(PARTS)}")
    with Database(dsn).connect() as connection:
        report = Report("limits", machine(connection), quick=quick)
    for name, part in PARTS.items():
        if only in ("", name):
            tell(f"measuring: {(part.__doc__ or '').splitlines()[0]}")
            try:
                with scratch.database(dsn) as scratch_dsn:
                    report.figures += part(scratch_dsn, effort)
            except Exception as error:  # noqa: BLE001 - the other parts are worth having
                tell(f"failed: {error!r}")
                report.figures.append(Figure(f"{name}: failed: {error!r}"[:200], float("nan"), "", "", good=False))
    return report
