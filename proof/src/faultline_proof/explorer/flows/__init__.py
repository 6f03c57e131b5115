"""Scenes of flows: jobs that wait for others, for signals and for time, with stops in the middle of the verbs.

They are judged by their end: what workers would go on to do is done, then nobody may wait for what has happened.
"""

from faultline_proof.explorer.flows import graphs, signals, trees, waits
from faultline_proof.explorer.scenarios import Scenario

FLOW_SCENARIOS: dict[str, Scenario] = {
    scene.name: scene for scene in (*waits.SCENES, *signals.SCENES, *trees.SCENES, *graphs.SCENES)
}

__all__ = ["FLOW_SCENARIOS"]
