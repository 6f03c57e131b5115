"""The soak: hours of trouble in minutes. Real processes on a server of its own, random faults, and a judgement at the end.

`run` puts it together: the `producer` submits jobs (`tasks`, and some `mischief`), the `crew` works, `trouble` kills,
freezes, cuts, locks, cancels and restarts on its `servers`, and all that they send is on tape; when all has drained, `judge`
lets the history checker compare it with what is there, and the `report` says it.
"""

from faultline_proof.soak.report import Report
from faultline_proof.soak.run import Glance, Plan, Soak
from faultline_proof.soak.trouble import KINDS

__all__ = ["KINDS", "Glance", "Plan", "Report", "Soak"]
