"""Read a flow for a caller: only jobs of its queues are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faultline.store.reads import flows

if TYPE_CHECKING:
    from faultline.core.model import JobRecord
    from faultline.store.reads.flows import Flow
    from faultline.web.auth.caller import Caller
    from faultline.web.auth.connection_share import Share


async def flow_of(record: JobRecord, read: Share, caller: Caller) -> Flow:
    """The job and all below it."""
    queues = caller.only_queues
    jobs, has_more = await read.run(flows.tree(record.id, only_queues=queues))
    statements: list[Any] = [*flows.below(record.id, jobs, only_queues=queues)]
    (calls, has_more_calls), children, signals, parents = await read.run_all(statements)
    return flows.Flow(
        job_id=record.id,
        flow_id=record.flow_id,
        jobs=flows.named(record, jobs),
        calls=calls,
        children=children,
        signals=signals,
        parents=parents,
        is_cut=has_more or has_more_calls,
    )
