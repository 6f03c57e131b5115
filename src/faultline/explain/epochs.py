"""The life of a job as epochs: who held it under which token, from when to when, how that ended, and what was refused.

Read from the job's record and its journal. A job that was released without an error leaves no entry, so an epoch may be
missing; every epoch that is shown did happen. `unrecorded` describes a missing last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from faultline.core.journal import EpochEnd, JournalEvent, kind_of
from faultline.core.model import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline.core.model import JobRecord, JournalEntry


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    at: datetime
    verb: str
    reason: str
    current_token: int | None


@dataclass(frozen=True, slots=True)
class Epoch:
    """One owner's time with the job."""

    #: Every API response has every field.
    __pydantic_config__ = {"json_schema_serialization_defaults_required": True}  # noqa: RUF012 - read once, by name

    token: int
    owner: str | None
    claimed_at: datetime | None
    #: When others could claim the job; None while it runs.
    ended_at: datetime | None
    end: EpochEnd
    #: The error of the attempt, why it was reaped, or why it was cancelled.
    reason: str | None = None
    attempt: int | None = None
    renewals: int | None = None
    lease_expires_at: datetime | None = None
    refusals: tuple[RefusedWrite, ...] = field(default=())


def epochs(job: JobRecord, journal: Sequence[JournalEntry]) -> list[Epoch]:
    """In the order of their tokens. After a failover that lost commits, two may have the same token."""
    found: dict[tuple[int, str | None], Epoch] = {}
    for epoch in (*filter(None, map(_ended, journal)), *_current(job)):
        found[epoch.token, epoch.owner] = epoch
    for (token, owner), write in _refused(journal):
        epoch = found.get((token, owner)) or Epoch(token, owner, None, None, EpochEnd.UNRECORDED)
        found[token, owner] = replace(epoch, refusals=(*epoch.refusals, write))
    return sorted(found.values(), key=lambda epoch: (epoch.token, epoch.owner or ""))


def unrecorded(job: JobRecord, known: Sequence[Epoch]) -> str | None:
    """In words: a lease after all known ones, or None. The job may have run and had external effects."""
    if job.fencing_token <= (known[-1].token if known else 0):
        return None
    if known and known[-1].end is EpochEnd.RECOVERED:
        return None  # `recover` raised the token when it voided the lease
    if job.suspended:
        return None  # it released its lease to wait, as it should
    if job.flow_id is not None:
        return f"It ran under token {job.fencing_token}, and released its lease without an error, as a job that waits does."
    return (
        f"A worker took it under token {job.fencing_token} and released it without an error. Probably it snoozed or waits"
        f" for a budget, or no worker has a task named {job.task} with these parameters. The journal does not record which"
        " worker, or how long; or the entry was pruned."
    )


def program_changed(job: JobRecord, journal: Sequence[JournalEntry]) -> JournalEntry | None:
    """Why a queued job does not go on: its code does not fit its history. None: nothing says so."""
    if job.state is not JobState.QUEUED or job.suspended:
        return None
    tries = [e for e in journal if e.event == JournalEvent.PROGRAM_CHANGED or ((kind := kind_of(e.event)) and kind.ends)]
    return tries[-1] if tries and tries[-1].event == JournalEvent.PROGRAM_CHANGED else None


def _ended(entry: JournalEntry) -> Epoch | None:
    """The epoch that an entry ended. Cancelling a waiting job ends none."""
    kind, detail = kind_of(entry.event), entry.detail
    if entry.event == JournalEvent.PROGRAM_CHANGED and entry.fencing_token is not None:
        # Nothing was run, and the lease was released.
        return Epoch(entry.fencing_token, entry.owner, None, entry.at, EpochEnd.UNRECORDED, detail.get("error"))
    end = None if kind is None else kind.ends
    if end is None or entry.fencing_token is None or detail.get("was", JobState.RUNNING) != JobState.RUNNING:
        return None
    return Epoch(
        # `recover` raises the token at the same time.
        token=detail.get("token_was", entry.fencing_token),
        owner=entry.owner,
        claimed_at=_time(detail.get("claimed_at")),
        ended_at=entry.at,
        end=end,
        reason=detail.get("error") or detail.get("reason"),
        attempt=detail.get("attempt"),
        renewals=detail.get("renewals"),
        lease_expires_at=_time(detail.get("lease_expires_at")),
    )


def _current(job: JobRecord) -> Iterator[Epoch]:
    if job.state in (JobState.RUNNING, JobState.SUCCEEDED):
        yield Epoch(
            token=job.fencing_token,
            owner=job.owner,
            claimed_at=job.claimed_at,
            ended_at=job.finished_at,
            end=EpochEnd.RUNNING if job.state is JobState.RUNNING else EpochEnd.SUCCEEDED,
            attempt=job.attempt,
            renewals=job.renewals,
            lease_expires_at=job.lease_expires_at,
        )


def _refused(journal: Sequence[JournalEntry]) -> Iterator[tuple[tuple[int, str | None], RefusedWrite]]:
    for entry in journal:
        if entry.event == JournalEvent.STALE_WRITE_BLOCKED and entry.fencing_token is not None:
            detail = entry.detail
            write = RefusedWrite(entry.at, detail["verb"], detail["reason"], detail.get("current_token"))
            yield (entry.fencing_token, entry.owner), write


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
