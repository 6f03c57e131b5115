"""Small stories, one promise each, that must end as promised on a sound protocol. Taking out a guard breaks at least one."""

from faultline_proof.probes import (
    claims,
    endings,
    enqueues,
    ground,
    leases,
    locks,
    measures,
    operations,
    plain_sql,
    plans,
    reaps,
    roles,
    service,
    tables,
    workers,
)
from faultline_proof.probes.probe import PROBES, Probe

__all__ = [
    "PROBES",
    "Probe",
    "claims",
    "endings",
    "enqueues",
    "ground",
    "leases",
    "locks",
    "measures",
    "operations",
    "plain_sql",
    "plans",
    "reaps",
    "roles",
    "service",
    "tables",
    "workers",
]
