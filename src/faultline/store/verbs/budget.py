"""Budgets: declare and set them, and take from them for a running job."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - the fields of a named tuple
from typing import TYPE_CHECKING, NamedTuple

from faultline.store import jsontext
from faultline.store.rows import RowOf, value
from faultline.store.statement import UPKEEP_SECONDS, Statement
from faultline.store.verbs.flow import LOST, unless_stale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faultline.core.model import Json, Lease


class Take(NamedTuple):
    """What came of asking a budget. `status`: taken, wait, or never."""

    status: str
    #: Ask again then, in so many seconds.
    until: datetime | None
    seconds: float | None
    #: All that there can ever be.
    burst: float | None


_TAKE = RowOf(Take)


def take_budget(lease: Lease, budget: str, cost: float, number: int) -> Statement[Take]:
    """Take from a budget, once for each number. Raises `StaleLease`."""
    return Statement(
        name="take_budget",
        sql=f"select {_TAKE.columns}, {LOST.columns} from faultline.take_budget(%s, %s, %s, %s, %s::float8, %s)",
        params=(lease.job_id, lease.fencing_token, lease.owner, budget, float(cost), number),
        read=lambda rows: unless_stale("take_budget", lease, rows, _TAKE),
        repeatable=True,
        often=True,
    )


def declare_budget(budget: str, declared: Mapping[str, Json]) -> Statement[bool]:
    """Write what the code says about a budget. Returns whether this changed anything."""
    return Statement(
        name="declare_budget",
        sql="select faultline.declare_budget(%s, %s::jsonb)",
        params=(budget, jsontext.encode(dict(declared), f"rate of budget {budget}")),
        read=value,
        repeatable=True,
        # If the rate grows, those who wait are looked for among all open jobs.
        seconds=UPKEEP_SECONDS,
    )


def set_budget(
    budget: str, fields: Mapping[str, Json] | None, *, by: str | None = None, reason: str | None = None
) -> Statement[bool]:
    """Set a budget over what the code declares; None: what the code declares counts again."""
    return Statement(
        name="set_budget",
        sql="select faultline.set_budget(%s, %s::jsonb, %s, %s)",
        params=(budget, None if fields is None else jsontext.encode(dict(fields), f"rate of budget {budget}"), by, reason),
        read=value,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )
