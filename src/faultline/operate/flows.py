"""Send signals to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.core import bounds
from faultline.core.checks import check_text
from faultline.operate import actor
from faultline.operate.actor import logged
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
    for_call: str | int | None = None,
    by: str | None = None,
    idempotency_key: str | None = None,
    only_queues: Sequence[str] | None = None,
) -> Statement[bool]:
    """Send a signal to a job, by its id or its idempotency key. Returns whether it is new: a `key` counts once per job.

    `for_call`: the number of the wait that it answers; one that is over refuses it. With `only_queues`, jobs of other queues
    are not found. With `by`, the journal records who sent it.
    """
    actor.check(by, None)
    number = str(for_call) if isinstance(for_call, int) else for_call
    check_text("the name of a signal", name, bounds.SIGNAL_NAME_LENGTH_MAX)
    for what, text in (("key", key), ("for_call", number), ("idempotency_key", idempotency_key)):
        check_text(what, text, bounds.KEY_LENGTH_MAX)
    statement = flow.signal(
        job_id,
        name,
        payload,
        key=key,
        for_call=number,
        sent_by=by,
        idempotency_key=idempotency_key,
        only_queues=only_queues,
    )
    return logged(statement, "signal_sent", job_id=job_id or idempotency_key, signal=name, for_call=number, by=by)
