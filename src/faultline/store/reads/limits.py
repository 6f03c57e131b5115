"""Read the limits of queues and groups."""

from __future__ import annotations

from faultline.core.limits import BudgetRecord, LimitRecord
from faultline.store.rows import RowOf, as_json
from faultline.store.statement import Statement

_LIMIT = RowOf(
    LimitRecord,
    group="group_key",
    declared=as_json("declared"),
    override=as_json("override"),
    effective=as_json("effective"),
    orphaned="declared <> '{}' and coalesce((select bool_and(coalesce(queue <> all (w.limits), false))"
    " from faultline.workers w where w.heartbeat_at > faultline.clock() - interval '15 seconds'), false)",
)

_BUDGET = RowOf(
    BudgetRecord,
    declared=as_json("declared"),
    override=as_json("override"),
    effective=as_json("effective"),
    # As take_budget sees it.
    tokens="least(burst, coalesce(tokens + rate * greatest(0, extract(epoch from now - refilled_at)::float8), burst))",
    line_seconds="greatest(0, extract(epoch from nullif(reserved_until, '-infinity') - now)::float8)",
    # As `orphaned_budget` has it, which only verbs may call.
    orphaned="override = '{}' and coalesce((select bool_and(coalesce(name <> all (w.budgets), false))"
    " from faultline.workers w where w.heartbeat_at > now - interval '15 seconds'), false)",
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


def budgets() -> Statement[list[BudgetRecord]]:
    """All budgets by name, with what is in them now."""
    return Statement(
        name="budgets",
        sql=f"select {_BUDGET.columns} from (select b.*, faultline.clock() as now, (effective ->> 'burst')::float8 as burst,"
        " (effective ->> 'rate')::float8 / (effective ->> 'per')::float8 as rate from faultline.budgets b) b order by name",
        params=(),
        read=_BUDGET.many,
        repeatable=True,
        reads=True,
    )
