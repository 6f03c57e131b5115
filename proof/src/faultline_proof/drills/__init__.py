"""The drills: named failure stories with real processes against a real PostgreSQL. One small module for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core.errors import ConfigError
from faultline_proof.drills import (
    clocks,
    crashes,
    endings,
    failover,
    lease_race,
    limits,
    locks,
    schedules,
    servers,
    stale_writes,
    waiting,
    wires,
    zombies,
)

if TYPE_CHECKING:
    from faultline_proof.drill import Drill

DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        *lease_race.DRILLS,
        *crashes.DRILLS,
        *endings.DRILLS,
        *stale_writes.DRILLS,
        *waiting.DRILLS,
        *zombies.DRILLS,
        *wires.DRILLS,
        *servers.DRILLS,
        *locks.DRILLS,
        *limits.DRILLS,
        *clocks.DRILLS,
        *failover.DRILLS,
        *schedules.DRILLS,
    )
}


def chosen(name: str) -> list[Drill]:
    """One drill by its name, or all of them."""
    if name == "all":
        return list(DRILLS.values())
    if name not in DRILLS:
        raise ConfigError(f"there is no drill named {name}; there are: {', '.join(DRILLS)}, all")
    return [DRILLS[name]]
