"""Send signals to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.operate import who
from faultline.operate.who import logged
from faultline.store.verbs import flow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from faultline.core.model import Json
    from faultline.store.statement import Statement


def signal(
    job_id: UUID | None,
    name: str,
    payload: Json = None,
    *,
    key: str | None = None,
    for_call: str | None = None,
    by: str | None = None,
    idempotency_key: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[bool]:
    """Send a signal to a job, by its id or its idempotency key. Returns whether it is new: a `key` counts once per job.

    `for_call`: the number of the wait that it answers; one that is over refuses it. With `only_queues`, jobs of other queues
    are not found. With `by`, the journal records who sent it.
    """
    who.check(by, None)
    statement = flow.signal(
        job_id,
        name,
        payload,
        key=key,
        for_call=for_call,
        sent_by=by,
        idempotency_key=idempotency_key,
        only_queues=only_queues,
    )
    return logged(statement, "signal_sent", job_id=job_id or idempotency_key, signal=name, for_call=for_call, by=by)
