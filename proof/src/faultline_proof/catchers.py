"""Who can notice that a guard is missing, besides the probes. They take seconds, so they come last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from faultline_proof import drill as drills
from faultline_proof import explorer
from faultline_proof.drills import DRILLS

if TYPE_CHECKING:
    from faultline_proof.drill import Drill

#: So many orders of each scene are shown to a mutant.
_ORDERS = 60
Kind = Literal["probe", "drill", "schedule", "seed"]


class Catcher(Protocol):
    """Plays on a scratch database of the server with the mutant's SQL applied; an empty text is the sound protocol."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def run(self, server_dsn: str, mutant: str) -> str | None:
        """What it saw that must not be; None if all was well, or if it cannot be played on this machine."""


@dataclass(frozen=True, slots=True)
class DrillCatcher:
    drill: Drill
    kind: Kind = "drill"

    @property
    def name(self) -> str:
        return self.drill.name

    def run(self, server_dsn: str, mutant: str) -> str | None:
        verdict = drills.run(self.drill, server_dsn, mutant=mutant)
        if verdict.passed or verdict.skipped is not None:
            return None
        broken = [f"{check.claim}: {check.found}" for check in verdict.checks if not check.holds]
        return "; ".join(broken) or "its fault never took effect"


@dataclass(frozen=True, slots=True)
class ScheduleCatcher:
    """Some orders of one scene of flows. The whole of them is `faultline explore`."""

    name: str
    kind: Kind = "schedule"

    def run(self, server_dsn: str, mutant: str) -> str | None:
        exploration = explorer.explore(server_dsn, only=self.name, mutant=mutant, most=_ORDERS, tell=lambda _: None)
        return None if exploration.broken is None else exploration.broken.what


def catchers() -> list[Catcher]:
    scenes = [ScheduleCatcher(name) for name in (*explorer.FLOW_SCENARIOS, *explorer.LIMIT_SCENARIOS)]
    return [*scenes, *(DrillCatcher(drill) for drill in DRILLS.values())]
