"""What the tests drive the protocol with: the verbs on one session, time that can be moved, sessions stepped one by one."""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from faultline.core.model import Failure, JobRecord, JobState, Lease, Reaped, Reason, Settled, Submission
from faultline.store import jsontext, verbs
from faultline.store.database import run_on
from faultline.store.reads import invariants, views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from faultline.core.model import JournalEntry
    from faultline.store.statement import Statement

T = TypeVar("T")
_PATIENCE_SECONDS = 20.0
_calls = itertools.count(1)


class Driver:
    """Every verb, on one connection. An owner is a worker's name and a number that is new for every claim."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def run(self, statement: Statement[T]) -> T:
        return run_on(self.connection, statement)

    def enqueue(self, task: str = "t", args: Any = None, **fields: Any) -> UUID:
        submission = Submission(task, jsontext.encode_args({} if args is None else args, "args"), **fields)
        return self.run(verbs.enqueue_many([submission]))[0].job_id

    def claim(self, max_jobs: int = 100, *, worker: str = "w", queue: str = "default", **bounds: Any) -> list[Lease]:
        return self.run(verbs.claim(queue, owner=f"{worker}/{next(_calls)}", max_jobs=max_jobs, **bounds))

    def claim_one(self, *, worker: str = "w", queue: str = "default") -> Lease:
        (lease,) = self.claim(1, worker=worker, queue=queue)
        return lease

    def complete(self, *leases: Lease, result: Any = None) -> Settled:
        return self.run(verbs.complete(leases, [jsontext.encode(result, "result")] * len(leases)))

    def fail(self, lease: Lease, *, then: str = "retry", delay: float | None = 0, error: str = "boom") -> Settled:
        return self.run(verbs.fail([lease], [Failure(error, then, delay)]))

    def release(self, *leases: Lease, delays: Sequence[float | None] | None = None) -> Settled:
        return self.run(verbs.release(leases, delays))

    def renew(self, *leases: Lease) -> Settled:
        return self.run(verbs.renew(leases))

    def mark_started(self, *leases: Lease) -> Settled:
        return self.run(verbs.mark_started(leases))

    def reap(self, **words: Any) -> list[Reaped]:
        return self.run(verbs.reap(**words))

    def job(self, job_id: UUID) -> JobRecord:
        found = self.run(views.job(job_id))
        assert found is not None
        return found

    def state(self, job_id: UUID) -> JobState:
        return self.job(job_id).state

    def journal(self, job_id: UUID) -> list[JournalEntry]:
        return self.run(views.journal(job_id))

    def refusals(self, job_id: UUID) -> list[tuple[str, str]]:
        """(verb, reason) of every refused write on record."""
        entries = [entry for entry in self.journal(job_id) if entry.event == "stale_write_blocked"]
        return [(entry.detail["verb"], entry.detail["reason"]) for entry in entries]

    def value(self, query: str, *params: Any) -> Any:
        """The first value of a query of the test's own."""
        row = self.connection.execute(query.encode(), params or None).fetchone()
        assert row is not None
        return row[0]

    def sample(self) -> None:
        """Count now, whoever else counts or has counted a moment ago."""
        counted = False
        while not counted:
            self.connection.execute("update faultline.sampling set sampled_at = '-infinity'")
            counted = self.run(verbs.sample())

    def broken_invariants(self) -> list[str]:
        frozen = ("the_clock_is_the_servers",)
        return [violation.invariant for violation in invariants.violations(self.run, without=frozen)]


def reasons(settled: Settled) -> list[Reason]:
    return [refusal.reason for refusal in settled.stale]


class Clock:
    """The database's idea of time, in the test's hands. Production bodies of now() and clock() never read a setting."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute("create schema clock_of_the_test")
        connection.execute("create table clock_of_the_test.time as select clock_timestamp() as at")
        connection.execute("grant usage on schema clock_of_the_test to public")
        connection.execute("grant select on clock_of_the_test.time to public")
        for function, kind in (("now", "stable"), ("clock", "volatile")):
            connection.execute(
                f"create or replace function faultline.{function}() returns timestamptz language sql {kind}"
                " return (select at from clock_of_the_test.time)".encode()
            )

    def advance(self, seconds: float) -> None:
        self._connection.execute("update clock_of_the_test.time set at = at + make_interval(secs => %s)", (seconds,))


class Session:
    """One database session that can be made to wait: a call is started, and asked for its answer later."""

    def __init__(self, dsn: str) -> None:
        # A test that waits for its own lock must fail, not hang.
        self.connection = psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=10s -c statement_timeout=60s")
        self._thread = ThreadPoolExecutor(1)

    def start(self, call: Callable[[Driver], T]) -> Future[T]:
        return self._thread.submit(call, Driver(self.connection))

    def do(self, call: Callable[[Driver], T]) -> T:
        return self.start(call).result(_PATIENCE_SECONDS)

    def begin(self, isolation: str = "read committed") -> None:
        self.connection.execute(f"begin isolation level {isolation}".encode())

    def commit(self) -> None:
        self.connection.execute("commit")

    def rollback(self) -> None:
        self.connection.execute("rollback")

    def close(self) -> None:
        self.connection.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


class Sessions:
    """Opens sessions and tells whether one of them waits for a lock."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stack = contextlib.ExitStack()
        self._watcher: psycopg.Connection | None = None

    def __enter__(self) -> Self:
        self._watcher = self._stack.enter_context(psycopg.connect(self._dsn, autocommit=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self) -> Session:
        session = Session(self._dsn)
        self._stack.callback(session.close)
        return session

    def wait_until_blocked(self, session: Session, answer: Future[Any]) -> None:
        """Return once that session waits for another one's lock. Fails if it answers instead."""
        assert self._watcher is not None
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < give_up:
            blocked_by = "select cardinality(pg_blocking_pids(%s))"
            row = self._watcher.execute(blocked_by, (session.connection.info.backend_pid,)).fetchone()
            if row and row[0]:
                return
            if answer.done():
                raise AssertionError(f"it did not wait, it answered {answer.result()!r}")
        raise AssertionError("it neither waited nor answered")
