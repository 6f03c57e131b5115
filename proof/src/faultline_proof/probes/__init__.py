"""Small stories, one promise each, that must end as promised on a sound protocol. Taking out a guard breaks at least one.

`faultline prove` shows them the mutants, and tests/schema plays each of them on every version of PostgreSQL.
"""

from faultline_proof.probes import (  # noqa: F401 - each adds its probes
    claims,
    endings,
    enqueues,
    fences,
    flow_calls,
    flow_children,
    flow_endings,
    flow_forks,
    flow_graphs,
    flow_guards,
    flow_looks,
    flow_operators,
    flow_retries,
    flow_rounds,
    flow_signals,
    flow_streams,
    flow_sweeps,
    flow_topics,
    flow_upkeep,
    flow_waits,
    ground,
    leases,
    limit_budgets,
    limit_claims,
    limit_events,
    limit_findings,
    limit_guards,
    limit_shards,
    locks,
    measures,
    operations,
    plain_sql,
    plans,
    races,
    reaps,
    recovery,
    roles,
    schedule_rights,
    schedule_ticks,
    service,
    stale_writes,
    tables,
    turns,
    workers,
)
from faultline_proof.probes.probe import PROBES, Probe

__all__ = ["PROBES", "Probe"]
