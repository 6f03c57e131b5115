"""Read the limits of queues and groups."""

from __future__ import annotations

from faultline.core.limits import LimitRecord
from faultline.store.rows import RowOf, as_json
from faultline.store.statement import Statement

_LIMIT = RowOf(
    LimitRecord,
    group="group_key",
    declared=as_json("declared"),
    override=as_json("override"),
    effective=as_json("effective"),
)


def limits(queue: str | None = None) -> Statement[list[LimitRecord]]:
    """All limits of a queue, the queue's own first, then that of each group; None: of all queues."""
    return Statement(
        name="limits",
        sql=f"select {_LIMIT.columns} from faultline.limits where queue = coalesce(%s, queue)"
        " order by queue, group_key <> '', group_key <> '*', group_key",
        params=(queue,),
        read=_LIMIT.many,
        repeatable=True,
        reads=True,
    )
