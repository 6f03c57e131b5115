"""Scenes of limits, budgets, unique jobs and schedules: sessions that grant, free, change, count and submit, in every order.

They are judged by their end: no limit is exceeded, no permit is lost, and whoever claims again and again gets everything.
"""

from faultline_proof.explorer.limits import budgets, orders, permits, schedules, unique
from faultline_proof.explorer.scenarios import Scenario

LIMIT_SCENARIOS: dict[str, Scenario] = {
    scene.name: scene for scene in (*permits.SCENES, *orders.SCENES, *budgets.SCENES, *unique.SCENES, *schedules.SCENES)
}

__all__ = ["LIMIT_SCENARIOS"]
