"""Small stories, one promise each, that must end as promised on a sound protocol. Taking out a guard breaks at least one."""

from faultline.proof.probes import (
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
from faultline.proof.probes.probe import PROBES, Probe

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
