"""How cost grows: curves over backlog, ledger, workers, payload and whatever else a queue has more of one day.

Each curve has a scratch database of its own, varies one thing and says what a job costs then; its points are measured one
after the other in the same run, so that they can be compared. What is found is in the shape of `report`. A curve or a point
that fails is told as such, and the others are measured all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store import scratch
from faultline.store.database import Database
from faultline_proof.bench.growth import tables, traffic, workers
from faultline_proof.bench.growth.points import Effort
from faultline_proof.bench.report import Curve, Report, machine

if TYPE_CHECKING:
    from collections.abc import Callable

CURVES = (*tables.CURVES, *workers.CURVES, *traffic.CURVES)


def measure(dsn: str, *, quick: bool = False, only: str | None = None, tell: Callable[[str], None] = print) -> Report:
    """All curves, or those whose function's name contains `only`."""
    with Database(dsn).connect() as connection:
        report = Report("growth", machine(connection), quick=quick)
    for curve in CURVES:
        if only is None or only in curve.__name__:
            name = (curve.__doc__ or "").splitlines()[0]
            tell(f"measuring: {name}")
            try:
                with scratch.database(dsn) as scratch_dsn:
                    report.curves += curve(scratch_dsn, Effort(quick=quick))
            except Exception as error:  # noqa: BLE001 - the other curves are worth having
                tell(f"failed: {error!r}")
                report.curves.append(Curve(name, "", "", [{"at": 0, "value": None, "missing": repr(error)}]))
    return report
