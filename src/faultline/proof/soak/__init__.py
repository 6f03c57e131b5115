"""The soak: hours of trouble in minutes. Real processes on a server of its own, random faults, and a judgement at the end.

`run` puts it together: the `producer` submits jobs (`tasks`), the `crew` works, `trouble` kills, freezes, cuts and restarts,
and all that they send is on tape; when all has drained, `judge` lets the history checker compare it with what is there, and
the `report` says it.
"""

from faultline.proof.soak.report import Report
from faultline.proof.soak.run import Glance, Plan, Soak

__all__ = ["Glance", "Plan", "Report", "Soak"]
