"""Sessions that are stepped one by one against a real PostgreSQL, and time that can be moved.

What one session does while another one waits is decided here, not by luck: a call is started, the database is asked whether
it waits for a lock, and only then does the story go on.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from faultline.core.model import Failure, JobRecord, Lease, Reaped, Submission, Unwritten
from faultline.store import jsontext, verbs
from faultline.store.database import run_on
from faultline.store.reads import invariants, views
from faultline.store.testing import clocks_say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faultline.core.model import JobState, JournalEntry
    from faultline.store.statement import Statement

T = TypeVar("T")
#: `complete` waits for a millisecond; a loaded machine may make more of it.
_MOMENT_SECONDS = 1.0
_PATIENCE_SECONDS = 20.0
#: A story that waits for its own lock, or loops, must end; a deadlock must show itself quickly.
_OPTIONS = "-c lock_timeout=5s -c statement_timeout=10s -c deadlock_timeout=100ms"
#: Invariants that look at definitions.
_DEFINITIONS = ("times_come_from_the_server_clock", "the_guards_are_in_place")
_calls = itertools.count(1)


def numbered_id(number: int) -> UUID:
    """An id of the form that jobs have; a greater number is a later id."""
    return UUID(int=7 << 76 | number)


class Driver:
    """Every verb, on one connection. An owner is a worker's name and a number that is new for every claim."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    # Plain SQL

    def execute(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *params: Any) -> Any:
        return self.execute(query, *params)[0][0]

    def begin(self, isolation: str = "read committed") -> None:
        self.execute(f"begin isolation level {isolation}")

    def commit(self) -> None:
        self.execute("commit")

    def rollback(self) -> None:
        self.execute("rollback")

    @contextlib.contextmanager
    def unsaved(self) -> Iterator[None]:
        """One transaction that is taken back at the end: quick, since nothing waits for the disk."""
        with self.connection.transaction(force_rollback=True):
            yield

    def notices(self) -> list[str]:
        """What was sent to everyone who listens, so far."""
        self.execute("select 1")
        return [notice.payload for notice in self.connection.notifies(timeout=0)]

    # The verbs

    def run(self, statement: Statement[T]) -> T:
        return run_on(self.connection, statement)

    def enqueue(self, task: str = "t", args: Any = None, **fields: Any) -> UUID:
        submission = Submission(task, jsontext.encode_args({} if args is None else args, "args"), **fields)
        return self.run(verbs.enqueue_many([submission]))[0].job_id

    def claim(self, max_jobs: int = 100, *, worker: str = "w", queue: str = "default", **bounds: Any) -> list[Lease]:
        return self.run(verbs.claim(queue, owner=f"{worker}/{next(_calls)}", max_jobs=max_jobs, **bounds))

    def claim_one(self, *, worker: str = "w", queue: str = "default") -> Lease:
        leases = self.claim(1, worker=worker, queue=queue)
        if not leases:
            raise AssertionError("there was nothing to claim")
        return leases[0]

    def new_lease(self, *, worker: str = "w", **fields: Any) -> Lease:
        """Enqueue a job that is more urgent than all others, and claim it."""
        self.enqueue(**{"priority": -100, **fields})
        return self.claim_one(worker=worker)

    def complete(self, *leases: Lease, result: Any = None) -> Unwritten:
        return self.run(verbs.complete(leases, [jsontext.encode(result, "result")] * len(leases)))

    def fail(self, *leases: Lease, then: str = "retry", delay: float | None = 0, error: str = "boom") -> Unwritten:
        return self.run(verbs.fail(leases, [Failure(error, then, delay)] * len(leases)))

    def release(self, *leases: Lease, delays: Sequence[float | None] | None = None) -> Unwritten:
        return self.run(verbs.release(leases, delays))

    def renew(self, *leases: Lease) -> Unwritten:
        return self.run(verbs.renew(leases))

    def record_start(self, *leases: Lease) -> Unwritten:
        return self.run(verbs.record_start(leases))

    def step(self, lease: Lease, name: str = "s", result: Any = 1) -> Unwritten:
        return self.run(verbs.step(lease, name, result))

    def progress(self, lease: Lease, progress: Any = 1) -> Unwritten:
        return self.run(verbs.progress(lease, progress))

    def fence(self, lease: Lease) -> None:
        self.run(verbs.fence(lease))

    def reap(self, **words: Any) -> list[Reaped]:
        return self.run(verbs.reap(**words))

    def heartbeat(self, worker: str = "w", *, watched: bool = True, sleeping: Sequence[str] = ()) -> None:
        self.run(
            verbs.heartbeat(worker, host="h", pid=1, version="0", queues=["default"], sleeping=sleeping, watched=watched)
        )

    def lock_as(self, worker: str = "w") -> None:
        """Hold the lock by which a worker is known to live."""
        if not self.value("select pg_try_advisory_lock(faultline.worker_lock(%s))", worker):
            raise AssertionError(f"somebody else holds the lock of {worker}")

    def sample(self) -> None:
        """Count now, whoever else counts or has counted a moment ago."""
        counted = False
        while not counted:
            self.execute("update faultline.sampling set sampled_at = '-infinity'")
            counted = self.run(verbs.sample())

    # What is seen

    def job(self, job_id: UUID) -> JobRecord:
        found = self.run(views.job(job_id))
        if found is None:
            raise AssertionError(f"job {job_id} is gone")
        return found

    def state(self, job_id: UUID) -> JobState:
        return self.job(job_id).state

    def journal(self, job_id: UUID) -> list[JournalEntry]:
        return self.run(views.journal(job_id))

    def events(self, job_id: UUID) -> list[str]:
        return [entry.event for entry in self.journal(job_id)]

    def refusals(self, job_id: UUID) -> list[tuple[str, str]]:
        """(verb, reason) of every refused write on record."""
        entries = [entry for entry in self.journal(job_id) if entry.event == "stale_write_blocked"]
        return [(entry.detail["verb"], entry.detail["reason"]) for entry in entries]

    def broken_invariants(self, *, without: tuple[str, ...] = _DEFINITIONS) -> list[str]:
        """Those about definitions are left out: a probe is to see what a guard does, not whether it is there."""
        return [violation.invariant for violation in invariants.violations(self.run, without=without)]


class Session(Driver):
    """A connection of its own that can be made to wait: a call is started, and asked for its answer later."""

    def __init__(self, dsn: str, options: str = _OPTIONS) -> None:
        super().__init__(psycopg.connect(dsn, autocommit=True, prepare_threshold=None, options=options))
        self.pid = self.connection.info.backend_pid
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def start(self, call: Callable[[Session], T]) -> Future[T]:
        """Call in the background; the answer is asked for later."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        answer: Future[T] = self._thread.submit(call, self)
        self._last = answer
        return answer

    @property
    def is_at_work(self) -> bool:
        return self._last is not None and not self._last.done()

    def close(self) -> None:
        self.connection.close()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)


class Sessions:
    """Opens sessions on one database, tells which of them wait, and clears the database for the next story."""

    def __init__(self, dsn: str, options: str = _OPTIONS) -> None:
        self._dsn, self._options = dsn, options
        self._opened: list[Session] = []
        self._spare: list[Session] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            for session in (*self._opened, *self._spare):
                self._let_go(session) if session.is_at_work else session.close()

    def open(self) -> Session:
        session = self._spare.pop() if self._spare else Session(self._dsn, self._options)
        self._opened.append(session)
        return session

    @cached_property
    def _watcher(self) -> Session:
        return self._stack.enter_context(contextlib.closing(Session(self._dsn, self._options)))

    @cached_property
    def hand(self) -> Session:
        """For what nobody can do through the protocol: its writes pass by every trigger, as a restore's do."""
        hand = self._stack.enter_context(contextlib.closing(Session(self._dsn, self._options)))
        hand.execute("set session_replication_role = replica")
        return hand

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.hand)

    def end(self, session: Session) -> None:
        """End a session. When this returns, the server has let go of all its locks."""
        self._let_go(session)
        self._opened.remove(session)

    def _let_go(self, session: Session) -> None:
        patience = int(_PATIENCE_SECONDS * 1000)
        self._watcher.execute("select pg_terminate_backend(%s, %s)", session.pid, patience)
        session.close()

    def wait_until_blocked(self, session: Session, answer: Future[Any]) -> None:
        """Return once that session waits for a lock of another one's. Fails if it answers instead."""
        if not self._waits(session, answer):
            raise AssertionError(f"it did not wait, it answered {answer.result()!r}")

    def at_once(self, session: Session, call: Callable[[Session], T]) -> T:
        """The answer to a call that must not wait for anybody's lock, but for a moment."""
        answer = session.start(call)
        try:
            return answer.result(_MOMENT_SECONDS if self._waits(session, answer) else None)
        except TimeoutError:
            raise AssertionError("it waits for somebody's lock") from None

    def _waits(self, session: Session, answer: Future[Any]) -> bool:
        give_up = time.monotonic() + _PATIENCE_SECONDS
        others = [other.pid for other in (*self._opened, self.hand)]
        while time.monotonic() < give_up:
            if self._watcher.value("select pg_blocking_pids(%s) && %s::integer[]", session.pid, others):
                return True
            if answer.done():
                return False
        raise AssertionError("it neither waited nor answered")

    def clear(self) -> None:
        """Take everything back that a story did: transactions, settings, rows, and the time."""
        for session in list(self._opened):
            if session.is_at_work or session.connection.closed:
                self.end(session)
                continue
            if session.connection.info.transaction_status != TransactionStatus.IDLE:
                session.rollback()
            session.execute("discard all")
            self._spare.append(session)
        self._opened.clear()
        self.clock.give_back()
        self.hand.execute(_EMPTY)


class Clock:
    """The database's idea of time, in a story's hands from the first `advance` on until the story is over."""

    def __init__(self, hand: Session) -> None:
        self._hand = hand
        self._bodies: list[str] = []

    def take(self) -> None:
        """From now on time stands still until it is moved."""
        if self._bodies:
            return
        names = ("now", "clock")
        self._hand.execute(STAGE)
        self._bodies = [self._hand.value(f"select pg_get_functiondef('faultline.{name}'::regproc)") for name in names]
        self._hand.execute("update story.time set at = clock_timestamp()")
        self._hand.execute(clocks_say("(select at from story.time)"))

    def advance(self, seconds: float) -> None:
        self.take()
        self._hand.execute("update story.time set at = at + make_interval(secs => %s)", seconds)

    def set_since_start(self, seconds: float) -> None:
        """As if the current run of the server had been noticed so long ago."""
        self.take()
        self._hand.execute(
            "update faultline.settings set server_run = faultline.server_run(),"
            " server_run_noticed_at = pg_postmaster_start_time();"
            "update story.time set at = pg_postmaster_start_time()"
        )
        self.advance(seconds)

    def give_back(self) -> None:
        """Put the bodies back that were there: production's, or a mutant's."""
        if self._bodies:
            self._hand.execute(";".join(self._bodies))
            self._bodies.clear()


#: What a database needs for stories to be played in it.
STAGE = """
set client_min_messages = warning;
create schema if not exists story;
create table if not exists story.time as select clock_timestamp() as at;
create table if not exists story.effects (job_id uuid, token bigint);
grant usage on schema story to public;
grant select on story.time to public;
"""

#: Every table there is: one that is forgotten here lets a story see what another has left.
_EMPTY = """
do $$
declare
  kept constant text[] := array['schema_files', 'sampling'];
  one text;
begin
  for one in
    select c.oid::regclass::text from pg_class c
    where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r' and c.relname <> all (kept)
  loop
    execute 'delete from ' || one;
  end loop;
end
$$;
delete from story.effects;
insert into faultline.settings (server_run, server_run_noticed_at) values (faultline.server_run(), '-infinity');
update faultline.sampling set sampled_at = '-infinity', took_seconds = 0;
"""
