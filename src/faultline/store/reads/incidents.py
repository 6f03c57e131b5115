"""Recently lost leases and refused writes, of all jobs. Reads a limited part of the journal's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.core.journal import JournalEvent, kind_of, quoted
from faultline.store.rows import RowOf
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

#: How many entries to read. Behind so many failed attempts an older refusal is not found, which keeps this cheap.
_LOOKED_AT = 5000


class Incident(NamedTuple):
    at: datetime
    event: str
    job_id: UUID | None
    fencing_token: int | None
    owner: str | None
    reason: str | None
    #: The verb of a refused write.
    verb: str | None

    @property
    def label(self) -> str:
        """A few words for people."""
        if self.verb is not None:
            return f"{self.verb} refused"
        kind = kind_of(self.event)
        return (kind.label if kind is not None else None) or self.event.replace("_", " ")


_INCIDENT = RowOf(
    Incident, reason="left(coalesce(n.detail ->> 'reason', n.detail ->> 'host'), 300)", verb="n.detail ->> 'verb'"
)


def incidents(most: int = 8) -> Statement[list[Incident]]:
    """Newest first. Failed attempts are not among them: they concern the author of the task."""
    return Statement(
        name="incidents",
        sql=f"select {_INCIDENT.columns}"
        " from (select * from faultline.journal order by id desc limit %s) n"
        f" where n.event in ({quoted(*(event for event in JournalEvent if event.kind.incident))})"
        " order by n.id desc limit %s",
        params=(_LOOKED_AT, most),
        read=_INCIDENT.many,
        repeatable=True,
        reads=True,
    )


class Refused(NamedTuple):
    times: int
    last_at: datetime | None


_REFUSED = RowOf(Refused, times="count(*)", last_at="max(n.at)")


def refused_lately() -> Statement[Refused]:
    """Refused writes of the last hour, among the newest entries, of workers and other clients."""
    return Statement(
        name="refused_lately",
        sql=f"select {_REFUSED.columns} from (select at, event from faultline.journal order by id desc limit %s) n"
        f" where n.event = '{JournalEvent.STALE_WRITE_BLOCKED}' and n.at > faultline.now() - interval '1 hour'",
        params=(_LOOKED_AT,),
        read=_REFUSED.one,
        repeatable=True,
        reads=True,
    )
