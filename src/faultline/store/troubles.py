"""What went wrong lately: the newest entries of the journal, all jobs together. Reads a bounded piece of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.store.queue import Statement

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

#: Entries looked at: among a storm of failed attempts a refusal further back is not found, which keeps this cheap.
_LOOKED_AT = 500


class Trouble(NamedTuple):
    at: datetime
    event: str
    job_id: UUID | None
    fencing_token: int | None
    owner: str | None
    #: The error, or why.
    because: str | None


def troubles(most: int = 8) -> Statement[list[Trouble]]:
    """Newest first, refused writes before anything else: they are rare, and what people want to know of."""
    return Statement(
        name="troubles",
        sql="select n.at, n.event, n.job_id, n.fencing_token, n.owner, left(coalesce(n.detail ->> 'error',"
        " n.detail ->> 'reason', n.detail ->> 'host'), 300)"
        " from (select * from faultline.journal order by id desc limit %s) n"
        " where n.event in ('stale_write_blocked', 'lease_reaped', 'worker_lost', 'attempt_failed', 'recovered', 'reconciled')"
        " order by n.event = 'attempt_failed', n.id desc limit %s",
        params=(_LOOKED_AT, most),
        read=lambda rows: sorted(map(Trouble._make, rows), key=lambda trouble: trouble.at, reverse=True),
        repeatable=True,
    )
