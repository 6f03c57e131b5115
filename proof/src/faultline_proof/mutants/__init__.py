"""The protocol without one of its guards, for every guard there is. Who takes one out must be seen doing it.

Where the guards are found: `catalogue` looks for those that the database itself lists, `texts` for those that many functions
have alike; those that stand once in a function are listed by hand, in the other
modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.mutants import (
    catalogue,
    claims,
    flow_calls,
    flow_forks,
    flow_graphs,
    flow_undos,
    flow_upkeep,
    flow_waits,
    ground,
    leases,
    limit_events,
    limit_waits,
    limits,
    measures,
    names,
    operations,
    reaps,
    schedule_rights,
    schedule_specs,
    service,
    submissions,
    texts,
    unique_jobs,
    upkeep,
)
from faultline_proof.mutants.texts import Cut, Disarmed, Mutant

if TYPE_CHECKING:
    import psycopg

__all__ = ["Cut", "Disarmed", "Mutant", "every"]

_POSTGRESQL_18 = 180000


def every(connection: psycopg.Connection) -> list[Mutant]:
    """All mutants for this server. The database must be freshly migrated."""
    modern = connection.info.server_version >= _POSTGRESQL_18
    none = ground.NO_GUARDS if modern else ground.NO_GUARDS | ground.NO_GUARDS_BEFORE_18
    found = [cut.mutant(about) for cut, about in texts.common() if cut.name not in none]
    by_hand = (
        leases,
        claims,
        submissions,
        reaps,
        upkeep,
        operations,
        service,
        measures,
        ground,
        flow_waits,
        flow_calls,
        flow_forks,
        flow_graphs,
        flow_undos,
        flow_upkeep,
        schedule_rights,
        schedule_specs,
        unique_jobs,
        limits,
        limit_events,
        limit_waits,
        names,
    )
    found += [cut.mutant() for module in by_hand for cut in texts.cuts(module.GUARDS)]
    found += [cut.mutant() for cut in texts.cuts(submissions.SINCE_18 if modern else submissions.BEFORE_18)]
    found += [*ground.TABLES, *catalogue.taken_out(connection)]
    return found
