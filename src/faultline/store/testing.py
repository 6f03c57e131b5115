"""Statements for tests only: freeze the database's time, and find due jobs. No production code uses them."""

from __future__ import annotations

import os
import socket
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg import sql

from faultline.core.errors import ConfigError, PermissionDenied
from faultline.core.journal import JournalEvent, quoted
from faultline.store.database import Database
from faultline.store.install.schema_text import function_text
from faultline.store.reads import views
from faultline.store.rows import value, values
from faultline.store.statement import Statement
from faultline.store.translation import translated

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.core.model import JobRecord, JobState

#: A database for tests has one of these in its name.
TEST_NAMES = ("test", "scratch")

#: One test at a time may freeze a database's time. The number is "frozen" in ASCII.
_LOCK = 0x66726F7A656E

#: The functions that return the time, with their volatility.
_CLOCKS = {"now": "stable", "clock": "volatile"}


def clocks_say(now: str, clock: str | None = None) -> str:
    """SQL that makes `faultline.now()` and `faultline.clock()` return these SQL expressions."""
    return "".join(
        f"create or replace function faultline.{name}() returns timestamptz language sql {kind} parallel safe"
        f" return {now if name == 'now' else clock or now};"
        for name, kind in _CLOCKS.items()
    )


#: Workers of other processes with a recent heartbeat, unless their session has ended.
_STRANGERS = (
    "select format('%%s on %%s, process %%s', w.id, w.host, w.pid) from faultline.workers w"
    " where (w.host, w.pid) <> (%s, %s) and w.heartbeat_at > clock_timestamp() - interval '30 seconds'"
    " and not (w.watched and pg_try_advisory_xact_lock(faultline.worker_lock(w.id)))"
    " order by w.id"
)


def database() -> Statement[str]:
    """The name of the database."""
    return Statement("database", "select current_database()", (), value, repeatable=True, reads=True)


def is_for_tests(name: str) -> bool:
    return any(word in name.lower() for word in TEST_NAMES)


class FrozenTime:
    """Freezes the database's time until the test moves it, only forward.

    It replaces the bodies of `faultline.now()` and `faultline.clock()`, so it holds for every session, also of other
    processes. The production bodies read no setting and no table, so there is no gentler way.
    """

    def __init__(self, dsn: str, *, test_database: bool = False) -> None:
        self._dsn = dsn
        self._session = Database(dsn).connect()
        try:
            with translated(dsn):
                self._refuse_if_wrong_here(test_database=test_database)
                self._set(self._value("select clock_timestamp()"))
        except PermissionDenied as error:
            self._session.close()
            raise ConfigError("only the owner of the schema faultline can freeze time; connect as that login") from error
        except BaseException:
            self._session.close()
            raise

    @property
    def now(self) -> datetime:
        """The database's time."""
        return self._now

    def advance(self, seconds: float | timedelta) -> None:
        """Move time forward at once."""
        passed = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        if passed < timedelta():
            raise ConfigError(f"time cannot be moved by {passed.total_seconds():g} s: it only moves forward")
        self._set(self._now + passed)

    def advance_to(self, moment: datetime) -> None:
        """Move time forward to this moment; do nothing if it is in the past."""
        if moment > self._now:
            self._set(moment)

    def close(self) -> None:
        """Restore the database's own clock, on a new connection: the test may have cut ours."""
        try:
            with Database(self._dsn).connect() as connection, connection.transaction():
                for name in _CLOCKS:
                    connection.execute(function_text(name).encode())
        finally:
            self._session.close()

    def _set(self, moment: datetime) -> None:
        self._session.execute(clocks_say(sql.Literal(moment).as_string(self._session)).encode())
        self._now = moment

    def _refuse_if_wrong_here(self, *, test_database: bool) -> None:
        name: str = self._value("select current_database()")
        if not test_database and not is_for_tests(name):
            raise ConfigError(
                f"time is not frozen in {name}: it would stop for every user of this database, and its name contains "
                f"neither {' nor '.join(TEST_NAMES)}. Use a scratch_database(), or pass test_database=True if it is one"
            )
        strangers = [who for (who,) in self._session.execute(_STRANGERS, (socket.gethostname(), os.getpid())).fetchall()]
        if strangers:
            raise ConfigError(
                f"time is not frozen in {name}: other workers use it ({'; '.join(strangers)}), so it is not a "
                "database of this test's own. Stop them, or take a scratch_database()"
            )
        if not self._value("select pg_try_advisory_lock(%s)", _LOCK):
            raise ConfigError(f"time is already frozen in {name}; use that one, or wait for the other test to end")

    def _value(self, query: LiteralString, *params: object) -> Any:
        row = self._session.execute(query, params).fetchone()
        return row[0] if row else None


@dataclass(frozen=True, slots=True)
class Tally:
    """What one worker did: how many jobs ended how, and the errors, oldest first."""

    counts: Counter[str]
    errors: list[str]
    #: Why programs did not go on: their code did not fit their history.
    changed: list[str]


def jobs(*, task: str | None = None, queue: str | None = None, state: JobState | None = None) -> Statement[list[JobRecord]]:
    """The jobs that match, oldest first."""
    return Statement(
        name="jobs",
        sql=f"select {views.JOB.columns} from faultline.jobs"
        " where task = coalesce(%s, task) and queue = coalesce(%s, queue) and state = coalesce(%s, state)"
        " order by created_at, id",
        params=(task, queue, state),
        read=views.JOB.many,
        repeatable=True,
    )


#: Queues with queued jobs, and whether they have limits. In these the next turn says when something may be claimed.
_QUEUED = (
    "with queued as materialized (select q.name, exists (select from faultline.limited(array[q.name])) as limited"
    " from (select distinct queue as name from faultline.jobs"
    " where state = 'queued' and queue = coalesce(%s, queue)) q)"
)


def due_queues(queue: str | None = None) -> Statement[list[str]]:
    """The queues with a due job; only this one, if named."""
    return Statement(
        name="due_queues",
        sql=f"{_QUEUED} select q.name from queued q where case"
        " when q.limited then faultline.next_claim_at(q.name) <= faultline.clock()"
        " else exists (select from faultline.jobs j where j.queue = q.name and j.state = 'queued'"
        " and j.next_run_at <= faultline.now()) end order by q.name",
        params=(queue,),
        read=values,
        repeatable=True,
    )


def next_due(queue: str | None = None) -> Statement[datetime | None]:
    """When the next queued job is due; None if none is by the time alone. A wait for jobs lasts until the year 9999."""
    return Statement(
        name="next_due",
        sql=f"{_QUEUED} select nullif(min(least("
        "(select min(j.next_run_at) from faultline.jobs j where j.queue = q.name and j.state = 'queued'"
        " and (not q.limited or j.next_run_at > faultline.now())"
        # A program that has changed would be tried again and again: other code has to come first.
        " and (select e.event from faultline.journal e where e.job_id = j.id order by e.id desc limit 1)"
        " is distinct from 'program_changed'),"
        " case when q.limited then greatest(coalesce(faultline.next_claim_at(q.name), '9999-01-01Z'), faultline.clock()) end"
        ")), '9999-01-01Z') from queued q",
        params=(queue,),
        read=value,
        repeatable=True,
    )


def is_busy(worker_id: str, queues: list[str]) -> Statement[bool]:
    """Whether a worker still holds a job, or one is due in its queues and within their limits."""
    return Statement(
        name="is_busy",
        sql="select exists (select from faultline.jobs where queue = any(%s)"
        " and (state = 'queued' and next_run_at <= faultline.now() and queue not in (select faultline.limited(%s))"
        " or state = 'running' and split_part(owner, '/', 1) = %s))"
        " or exists (select from faultline.limited(%s) q where faultline.next_claim_at(q) <= faultline.clock()"
        " and exists (select from faultline.jobs where state = 'queued' and queue = q))",
        params=(queues, queues, worker_id, queues),
        read=value,
        repeatable=True,
    )


def tally(worker_id: str) -> Statement[Tally]:
    """How the jobs of a worker ended: succeeded, failed, cancelled, or queued again after an error."""
    return Statement(
        name="tally",
        sql="select 'succeeded', null from faultline.ledger where split_part(owner, '/', 1) = %s union all"
        f" (select case when j.event in ({quoted(JournalEvent.CANCELLED, JournalEvent.PROGRAM_CHANGED)}) then j.event"
        " else j.detail ->> 'state' end,"
        " format('%%s: %%s', o.task, j.detail ->> 'error')"
        " from faultline.journal j left join faultline.jobs o on o.id = j.job_id"
        " where split_part(j.owner, '/', 1) = %s"
        f" and j.event in ({quoted(JournalEvent.ATTEMPT_FAILED, JournalEvent.CANCELLED, JournalEvent.PROGRAM_CHANGED)})"
        " order by j.id)",
        params=(worker_id, worker_id),
        read=lambda rows: Tally(
            Counter(end for end, _ in rows),
            [error for end, error in rows if end in ("failed", "queued")],
            [error for end, error in rows if end == JournalEvent.PROGRAM_CHANGED],
        ),
        repeatable=True,
    )
