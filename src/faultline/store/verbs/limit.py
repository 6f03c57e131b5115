"""Limits of queues and groups: declare, set and reset them, ask when to claim next, maintain idle queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.store import jsontext
from faultline.store.rows import RowOf, value, values
from faultline.store.statement import UPKEEP_SECONDS, Statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.core.model import Json


class Maintained(NamedTuple):
    """What `maintain_limits` did, and what its caller should know."""

    #: How many empty groups it forgot.
    groups: int
    #: Which of the caller's queues are limited.
    limited: list[str]


_MAINTAINED = RowOf(
    Maintained, groups="faultline.maintain_limits(%s)", limited="array(select faultline.limited(%s::text[]))"
)


def declare_queue(queue: str, declared: dict[str, Json]) -> Statement[bool]:
    """Write what the code says about a queue. Returns whether this changed anything."""
    return Statement(
        name="declare_queue",
        sql="select faultline.declare_queue(%s, %s::jsonb)",
        params=(queue, jsontext.encode(declared, f"limits of queue {queue}")),
        read=value,
        repeatable=True,
    )


def set_limit(
    queue: str, group: str, fields: Mapping[str, Json], *, by: str | None = None, reason: str | None = None
) -> Statement[None]:
    """Override fields of a limit. `group`: "" is the whole queue, "*" each of its groups; None as a value is no limit."""
    return Statement(
        name="set_limit",
        sql="select faultline.set_limit(%s, %s, %s::jsonb, %s, %s)",
        params=(queue, group, jsontext.encode(dict(fields), f"limit of queue {queue}"), by, reason),
        read=lambda _: None,
        repeatable=True,
    )


def reset_limit(queue: str, group: str, *, by: str | None = None, reason: str | None = None) -> Statement[bool]:
    """Undo what people have set for it: what the code declares counts again. Returns whether anything was set."""
    sql = "select faultline.reset_limit(%s, %s, %s, %s)"
    return Statement("reset_limit", sql, (queue, group, by, reason), value, repeatable=True)


def next_claim_at(queue: str) -> Statement[float | None]:
    """In how many seconds something may be claimed of which nobody will be notified; None: nothing is foreseen.

    `-math.inf`: the last claim stopped before it had looked at everything.
    """
    return Statement(
        name="next_claim_at",
        # An older PostgreSQL subtracts nothing from infinity.
        sql="select case when n.turn = '-infinity' then '-infinity'"
        " else extract(epoch from n.turn - faultline.clock())::float8 end"
        " from (select faultline.next_claim_at(%s) as turn) n",
        params=(queue,),
        read=value,
        repeatable=True,
        often=True,
    )


def yield_to_waiting_worker(queue: str, worker_id: str) -> Statement[bool]:
    """Wake another worker that waits for a permit of this queue. Returns whether there is one."""
    return Statement(
        "yield_to_waiting_worker",
        "select faultline.yield_to_waiting_worker(%s, %s)",
        (queue, worker_id),
        value,
        repeatable=True,
    )


def maintain_limits(queues: Sequence[str], max_groups: int = 500) -> Statement[Maintained]:
    """Apply the events of idle limited queues, and forget empty groups."""
    return Statement(
        name="maintain_limits",
        sql=f"select {_MAINTAINED.columns}",
        params=(max_groups, list(queues)),
        read=_MAINTAINED.one,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )


def limited(queues: Sequence[str]) -> Statement[list[str]]:
    """Those of these queues that have limits."""
    return Statement("limited", "select faultline.limited(%s::text[])", (list(queues),), values, repeatable=True, reads=True)


def recount(queue: str | None = None) -> Statement[int]:
    """Count permits anew. Returns how many accounts were wrong."""
    return Statement("recount", "select faultline.recount(%s)", (queue,), value, repeatable=True, seconds=UPKEEP_SECONDS)
