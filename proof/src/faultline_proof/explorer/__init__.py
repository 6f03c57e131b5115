"""Every order in which a few database sessions can take their steps is tried, lock waits included, and every answer judged.

Real sessions of a real PostgreSQL are stepped one statement at a time. A statement that waits for somebody's lock is left
waiting while the others go on. In the end every order has kept the rules and has left in the database exactly what they say;
or the first that did not is told step by step. A schedule, here, is such an order: whose turn is next, and next, and next.

`steps` are single statements, `programs` are lists of them, `scenarios` say which programs meet; `players` take the steps on
their sessions, `rules` judge the answers, `search` goes through the schedules, `story` tells what was seen.

Scenarios of `flows` stop inside the verbs as well (`stops`). That makes more orders than anybody can wait for, so of each
at most so many are drawn (`orders`), and they are judged by their end. So are those of `limits`.
"""

from faultline_proof.explorer.flows import FLOW_SCENARIOS
from faultline_proof.explorer.limits import LIMIT_SCENARIOS
from faultline_proof.explorer.scenarios import SCENARIOS, Scenario
from faultline_proof.explorer.search import explore
from faultline_proof.explorer.story import Broken, Exploration, Explored, Line

__all__ = [
    "FLOW_SCENARIOS",
    "LIMIT_SCENARIOS",
    "SCENARIOS",
    "Broken",
    "Exploration",
    "Explored",
    "Line",
    "Scenario",
    "explore",
]
