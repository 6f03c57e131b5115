"""Limits of queues and groups: declare, set and reset them, ask for the next turn, fold what idle queues left."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.store import jsontext
from faultline.store.rows import RowOf, value, values
from faultline.store.statement import UPKEEP_SECONDS, Statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from faultline.core.model import Json


class Folded(NamedTuple):
    """What a fold did, and what its caller should know."""

    #: How many empty groups it forgot.
    groups: int
    #: Which of the caller's queues are limited.
    limited: list[str]


_FOLDED = RowOf(Folded, groups="faultline.fold(%s)", limited="array(select faultline.limited(%s::text[]))")


def declare_queue(queue: str, declared: dict[str, Json], shards: int | None = None) -> Statement[bool]:
    """Write what the code says about a queue. Returns whether this changed anything."""
    return Statement(
        name="declare_queue",
        sql="select faultline.declare_queue(%s, %s::jsonb, %s)",
        params=(queue, jsontext.encode(declared, f"limits of queue {queue}"), shards),
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


def next_turn(queue: str) -> Statement[float | None]:
    """In how many seconds something may be claimed of which nobody will be notified; None: nothing is foreseen."""
    return Statement(
        name="next_turn",
        sql="select extract(epoch from faultline.next_turn(%s) - faultline.clock())::float8",
        params=(queue,),
        read=value,
        repeatable=True,
        often=True,
    )


def offer_turn(queue: str, worker_id: str) -> Statement[bool]:
    """Wake another worker that waits for a permit of this queue. Returns whether there is one."""
    return Statement("offer_turn", "select faultline.offer_turn(%s, %s)", (queue, worker_id), value, repeatable=True)


def fold(queues: Sequence[str], max_groups: int = 500) -> Statement[Folded]:
    """Hear what happened in idle limited queues, and forget empty groups."""
    return Statement(
        name="fold",
        sql=f"select {_FOLDED.columns}",
        params=(max_groups, list(queues)),
        read=_FOLDED.one,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )


def limited(queues: Sequence[str]) -> Statement[list[str]]:
    """Those of these queues that have limits."""
    return Statement("limited", "select faultline.limited(%s::text[])", (list(queues),), values, repeatable=True, reads=True)


def recount(queue: str | None = None) -> Statement[int]:
    """Count permits anew. Returns how many accounts were wrong."""
    return Statement("recount", "select faultline.recount(%s)", (queue,), value, repeatable=True, seconds=UPKEEP_SECONDS)
