"""The events of the journal, each declared once: its stored name, what it means, what it ends, and where it is shown.

A new one is a member here, the SQL that writes it, and a migration that allows it. Pages, the command line, the drawing and
the proofs follow from the declaration. The stored names are a contract: other builds read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

from faultline.core.model import JobState


class EpochEnd(StrEnum):
    """How a lease ended; `RUNNING` has not."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REAPED = "reaped"
    CANCELLED = "cancelled"
    RECOVERED = "recovered"
    RECONCILED = "reconciled"
    #: Only a refused write shows that it existed.
    UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True)
class _Kind:
    meaning: str
    #: What the entry is about, which decides who may see it. Entries about a job have its id.
    about: Literal["job", "queue", "worker", "key", "setting", "topic", "schedule"] = "job"
    #: How it ends the lease that it names. None: it does not.
    ends: EpochEnd | None = None
    #: The state of the job afterwards. None: the entry contains it, or nothing changes.
    state: JobState | None = None
    #: Shown among the incidents of the overview.
    incident: bool = False
    #: Shown among the operations on the job's page.
    operated: bool = False
    #: A short text, if the stored name is not clear.
    label: str | None = None


class JournalEvent(StrEnum):
    """The event of a journal entry. A `str`: it equals what the database stores."""

    kind: _Kind

    def __new__(cls, stored: str, kind: _Kind) -> Self:
        member = str.__new__(cls, stored)
        member._value_ = stored
        member.kind = kind
        return member

    ATTEMPT_FAILED = (
        "attempt_failed",
        _Kind("An attempt failed. The job was queued again, or has failed.", ends=EpochEnd.FAILED),
    )
    LEASE_REAPED = (
        "lease_reaped",
        _Kind(
            "A lease expired or its worker died. The job was queued again, or has failed.",
            ends=EpochEnd.REAPED,
            incident=True,
        ),
    )
    STALE_WRITE_BLOCKED = (
        "stale_write_blocked",
        _Kind(
            "The database refused a write of a worker that no longer held the lease.", incident=True, label="write refused"
        ),
    )
    CANCELLED = (
        "cancelled",
        _Kind(
            "Somebody cancelled the job, or its task did.",
            ends=EpochEnd.CANCELLED,
            state=JobState.CANCELLED,
            operated=True,
        ),
    )
    EXPIRED = (
        "expired",
        _Kind("No worker had claimed the job before it expired. It was cancelled.", state=JobState.CANCELLED),
    )
    SUPERSEDED = (
        "superseded",
        _Kind(
            "The job was to be queued again, but another with its unique key is queued. It was cancelled.",
            state=JobState.CANCELLED,
        ),
    )
    REPLACED = ("replaced", _Kind("A later submission with its unique key gave the queued job other arguments, or a time."))
    RETRIED = (
        "retried",
        _Kind("Somebody queued a failed or cancelled job again.", state=JobState.QUEUED, operated=True),
    )
    UNDO_BEGUN = (
        "undo_begun",
        _Kind(
            "Somebody had the sagas of a failed or cancelled job undone, or its parent did. It was queued again for that.",
            state=JobState.QUEUED,
            operated=True,
            label="undo begun",
        ),
    )
    WORKER_LOST = ("worker_lost", _Kind("A worker died. Its row was removed.", about="worker", incident=True))
    RECOVERED = (
        "recovered",
        _Kind(
            "`recover` voided the lease and raised the fencing token.",
            ends=EpochEnd.RECOVERED,
            incident=True,
            operated=True,
        ),
    )
    RECONCILED = (
        "reconciled",
        _Kind(
            "The job was in the ledger already. Its open row was removed.",
            ends=EpochEnd.RECONCILED,
            state=JobState.SUCCEEDED,
            incident=True,
            operated=True,
        ),
    )
    PROGRAM_CHANGED = (
        "program_changed",
        _Kind(
            "The code of the task does not fit the history of the job. Nothing was run; the job waits for code that fits.",
            incident=True,
            label="program changed",
        ),
    )
    SIGNALLED = ("signalled", _Kind("Somebody sent the job a signal.", operated=True))
    PAUSED = ("paused", _Kind("Somebody paused a queue or a schedule.", about="queue"))
    RESUMED = ("resumed", _Kind("Somebody resumed a queue or a schedule.", about="queue"))
    API_KEY_ADDED = ("api_key_added", _Kind("Somebody created an API key.", about="key"))
    API_KEY_REVOKED = ("api_key_revoked", _Kind("Somebody revoked an API key.", about="key"))
    LIMIT_CHANGED = ("limit_changed", _Kind("A limit of a queue or of its groups, or a budget, was changed.", about="queue"))
    PERMITS_RECOUNTED = (
        "permits_recounted",
        _Kind("The permits of a queue or a group were counted wrong, and counted anew.", about="queue", incident=True),
    )
    GAVE_WAY = (
        "group_deadlock_broken",
        _Kind(
            "The job and others waited for each other's ordered groups. It let its group go on before it has ended.",
            incident=True,
            label="gave way",
        ),
    )
    SETTING_CHANGED = (
        "setting_changed",
        _Kind("Somebody changed a setting of the database, or a schedule.", about="setting"),
    )
    STARTED_OVER = (
        "continued_as_new",
        _Kind("The job started over, with other arguments and an empty history.", state=JobState.QUEUED),
    )
    FORKED = ("forked", _Kind("Somebody began a new job with the history of this one; or this job began so.", operated=True))
    SUBSCRIBED = ("subscribed", _Kind("A task was subscribed to a topic, or its options for it changed.", about="topic"))
    SCHEDULE_FAILED = (
        "schedule_failed",
        _Kind(
            "Ticks of a schedule could not be decided about: its job is refused, or its rule cannot be computed. It is tried"
            " again.",
            about="schedule",
            incident=True,
            label="schedule failed",
        ),
    )
    UNSUBSCRIBED = ("unsubscribed", _Kind("Somebody ended the subscription of a task to a topic.", about="topic"))


_KINDS = {event.value: event.kind for event in JournalEvent}


def kind_of(stored: str) -> _Kind | None:
    """The declaration of a stored event. None: a newer build has written it."""
    return _KINDS.get(stored)


def about(*what: str) -> list[str]:
    """The stored names of the events about these."""
    return [event.value for event in JournalEvent if event.kind.about in what]


def quoted(*events: str) -> str:
    """A list of events for SQL."""
    return ", ".join(f"'{event}'" for event in events)
