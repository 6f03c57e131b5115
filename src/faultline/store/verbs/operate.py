"""What people do to jobs and queues: cancel, retry, undo, pause, resume, recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from faultline.core.model import JobState
from faultline.store.rows import RowOf, value
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from faultline.store.statement import Rows


def cancel(
    job_id: object,
    reason: str | None = None,
    *,
    undo: bool = False,
    only_queues: Sequence[str] | None = None,
    by: str | None = None,
) -> Statement[JobState]:
    """Cancel a job: its worker can write nothing more. With `only_queues`, jobs of other queues are not found."""
    sql = "select faultline.cancel(%s, %s, %s::text[], %s, %s)"
    params = (job_id, reason, None if only_queues is None else list(only_queues), by, undo)
    return Statement("cancel", sql, params, _state, repeatable=True)


def retry(
    job_id: object, *, only_queues: Sequence[str] | None = None, by: str | None = None, reason: str | None = None
) -> Statement[JobState]:
    """Retry a failed or cancelled job. With `only_queues`, jobs of other queues are not found."""
    sql = "select faultline.retry(%s, %s::text[], %s, %s)"
    params = (job_id, None if only_queues is None else list(only_queues), by, reason)
    return Statement("retry", sql, params, _state)


def undo(
    job_id: object, *, only_queues: Sequence[str] | None = None, by: str | None = None, reason: str | None = None
) -> Statement[JobState]:
    """Undo the sagas of a failed or cancelled job. With `only_queues`, jobs of other queues are not found."""
    sql = "select faultline.undo(%s, %s::text[], %s, %s)"
    params = (job_id, None if only_queues is None else list(only_queues), by, reason)
    return Statement("undo", sql, params, _state)


def _state(rows: Rows) -> JobState:
    return JobState(value(rows))


def pause(queue: str, reason: str | None = None, *, by: str | None = None) -> Statement[datetime]:
    """Pause a queue: workers stop claiming from it. Returns since when it is paused."""
    sql = "select faultline.pause(%s, %s, %s)"
    return Statement("pause", sql, (queue, reason, by), value, repeatable=True)


def resume(queue: str, *, by: str | None = None, reason: str | None = None) -> Statement[bool]:
    """Resume a queue: workers claim from it again. Returns whether it was paused."""
    sql, params = "select faultline.resume(%s, %s, %s)", (queue, by, reason)
    return Statement("resume", sql, params, value, repeatable=True)


def change_setting(name: str, to: int, reason: str | None = None, *, by: str | None = None) -> Statement[int]:
    """Change one setting of the database. Returns its old value."""
    sql, params = "select faultline.change_setting(%s, %s, %s, %s)", (name, to, reason, by)
    return Statement("change_setting", sql, params, value, repeatable=True)


class Recovered(NamedTuple):
    """What `recover` did: the floor, how many tokens it raised to it, and how many jobs it queued again."""

    lifted_to: int
    lifted: int
    requeued: int


_RECOVERED = RowOf(Recovered)


def recover(floor: int | None = None, *, by: str | None = None, reason: str | None = None) -> Statement[Recovered]:
    """Void every lease. Later claims get only tokens above the floor."""
    return Statement(
        name="recover",
        sql=f"select {_RECOVERED.columns} from faultline.recover(%s, %s, %s)",
        params=(floor, by, reason),
        read=_RECOVERED.one,
    )
