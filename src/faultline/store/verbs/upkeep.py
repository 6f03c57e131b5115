"""What each worker does for all: beat, reap, reconcile, prune."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.core.model import JobState, Reaped
from faultline.store.rows import Column, RowOf, value, values
from faultline.store.statement import UPKEEP_SECONDS, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID


class Expired(NamedTuple):
    """A job that was cancelled because no worker had claimed it in time."""

    job_id: UUID
    queue: str
    task: str


_EXPIRED = RowOf(Expired)
_REAPED = RowOf(Reaped, state=Column("state", JobState))


def heartbeat(
    worker_id: str,
    *,
    host: str,
    pid: int,
    version: str,
    queues: Sequence[str],
    sleeping: Sequence[str],
    watched: bool,
    leases: int = 0,
    clock_ahead_seconds: float | None = None,
) -> Statement[datetime]:
    """Send a heartbeat. Returns the database's time."""
    return Statement(
        name="heartbeat",
        sql="select faultline.heartbeat(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        params=(worker_id, host, pid, version, list(queues), list(sleeping), watched, leases, clock_ahead_seconds),
        read=value,
        repeatable=True,
    )


def announce(
    worker_id: str,
    tasks: Sequence[str],
    connections_max: int | None = None,
    schedules: Sequence[str] = (),
    budgets: Sequence[str] = (),
    limits: Sequence[str] = (),
) -> Statement[bool]:
    """Store which tasks, budgets and limits of queues this worker knows, its connections, and the digests of its schedules.

    Returns whether its row exists yet.
    """
    return Statement(
        name="announce",
        sql="select faultline.announce(%s, %s::text[], %s, %s::text[], %s::text[], %s::text[])",
        params=(worker_id, list(tasks), connections_max, list(schedules), list(budgets), list(limits)),
        read=value,
        repeatable=True,
    )


def unregister_worker(worker_id: str) -> Statement[None]:
    return Statement(
        "unregister_worker", "select faultline.unregister_worker(%s)", (worker_id,), lambda _: None, repeatable=True
    )


def first_expired(lower_bound: datetime | None = None) -> Statement[datetime]:
    """The first moment when a lease that is not reaped may have expired. Nothing before the bound is read."""
    return Statement(
        name="first_expired",
        sql="select faultline.first_expired(coalesce(%s, '-infinity'::timestamptz))",
        params=(lower_bound,),
        read=value,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )


def reap(
    *,
    max_jobs: int = 1000,
    notice_dead: bool | Callable[[], bool] = True,
    withheld: Callable[[], bool] = lambda: False,
    lower_bound: datetime | None = None,
    latest: Callable[[], datetime | None] = lambda: None,
) -> Statement[list[Reaped]]:
    """Requeue jobs whose lease expired or whose worker died. No lease expired before the bound: see `first_expired`.

    `latest`: what the database's clock can say at most, if nobody has set it. The database judges by nothing later.
    Functions are called before each send: it may have waited for a connection, or lost one, or this process may have been
    stopped meanwhile. While `withheld`, nothing is reaped.
    """

    def params() -> tuple[Any, ...]:
        # First: the heartbeat that learns of a new time withholds the reap before it lets that be the latest.
        judged_by = latest()
        is_noticing = notice_dead() if callable(notice_dead) else notice_dead
        return (0 if withheld() else max_jobs, is_noticing, lower_bound, judged_by)

    return Statement(
        name="reap",
        sql=f"select {_REAPED.columns} from faultline.reap(%s, %s, coalesce(%s, '-infinity'::timestamptz),"
        " coalesce(%s, 'infinity'::timestamptz))",
        params=params(),
        params_now=params,
        read=_REAPED.many,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )


def expire(*, max_jobs: int = 1000) -> Statement[list[Expired]]:
    """Cancel jobs that nobody has claimed before they expired."""
    return Statement(
        name="expire",
        sql=f"select {_EXPIRED.columns} from faultline.expire(%s)",
        params=(max_jobs,),
        read=_EXPIRED.many,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )


def reconcile(*, max_jobs: int = 1000) -> Statement[list[Any]]:
    """Close open rows of jobs that the ledger has."""
    return Statement(
        name="reconcile",
        sql="select * from faultline.reconcile(%s)",
        params=(max_jobs,),
        read=values,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )


def prune(what: str, *, older_than_seconds: float | None = None, max_rows: int = 1000) -> Statement[int]:
    """Delete ledger, failed, journal or keys rows, or flows, of this age; None: the age in the settings."""
    return Statement(
        name="prune",
        sql="select faultline.prune(%s, make_interval(secs => %s), %s)",
        params=(what, older_than_seconds, max_rows),
        read=value,
        repeatable=True,
        seconds=UPKEEP_SECONDS,
    )
