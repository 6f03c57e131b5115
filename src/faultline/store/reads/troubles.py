"""Leases that were lost and writes that were refused lately, of all jobs. Reads a bounded piece of the journal's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.store.statement import Statement

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

#: Entries looked at: behind a storm of failed attempts an older refusal is not found, which keeps this cheap.
_LOOKED_AT = 5000


class Trouble(NamedTuple):
    at: datetime
    event: str
    job_id: UUID | None
    fencing_token: int | None
    owner: str | None
    because: str | None
    #: What a refused write was to do.
    verb: str | None


def troubles(most: int = 8) -> Statement[list[Trouble]]:
    """Newest first. Attempts that failed are not among them: those are for whoever wrote the task."""
    return Statement(
        name="troubles",
        sql="select n.at, n.event, n.job_id, n.fencing_token, n.owner,"
        " left(coalesce(n.detail ->> 'reason', n.detail ->> 'host'), 300), n.detail ->> 'verb'"
        " from (select * from faultline.journal order by id desc limit %s) n"
        " where n.event in ('stale_write_blocked', 'lease_reaped', 'worker_lost', 'recovered', 'reconciled')"
        " order by n.id desc limit %s",
        params=(_LOOKED_AT, most),
        read=lambda rows: list(map(Trouble._make, rows)),
        repeatable=True,
        reads=True,
    )


class Refused(NamedTuple):
    times: int
    last_at: datetime | None


def refused_lately() -> Statement[Refused]:
    """Writes that were refused in the last hour, among the newest entries: whoever sent them, not workers alone."""
    return Statement(
        name="refused_lately",
        sql="select count(*), max(n.at) from (select at, event from faultline.journal order by id desc limit %s) n"
        " where n.event = 'stale_write_blocked' and n.at > faultline.now() - interval '1 hour'",
        params=(_LOOKED_AT,),
        read=lambda rows: Refused._make(rows[0]),
        repeatable=True,
        reads=True,
    )
