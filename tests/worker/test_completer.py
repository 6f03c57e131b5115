"""How a job ended is written, whatever the database says meanwhile. Only an error about the job itself ends the job."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from faultline import Faultline, JobFailed, JobState, Retry, Snooze
from faultline.core.errors import ConfigError, OutcomeUnknown, PermissionDenied
from faultline.core.faults import Faults
from faultline.core.host import Host
from faultline.core.model import Failure, Lease
from faultline.store.async_database import AsyncDatabase
from faultline.store.install import migrate
from faultline.store.translation import is_ours_to_mend
from faultline.worker.base.counters import Tally
from faultline.worker.lease.held_lease import HeldLease
from faultline.worker.lease.lease_table import Leases
from faultline.worker.write.batcher import Batcher
from faultline.worker.write.completer import Completer
from faultline.worker.write.endings import Completed, Ending, Failed, Released
from tests.versions import note_another_text
from tests.waiting import auntil
from tests.worker.working import PATIENCE, logged, results, work

if TYPE_CHECKING:
    import io
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tests.driver import Driver

#: Whatever is not about data: a lock, a cancelled statement, a conflict, a migration, a standby, a full disk, a bug.
ABOUT_THE_MOMENT = [
    "0A000", "25006", "40001", "40P01", "42501", "42883", "53100", "53200", "55000", "55006", "55P03",
    "57014", "57P01", "57P03", "58030", "P0001", "XX000", "XX001", "ZZ999",
]  # fmt: skip
ABOUT_THE_JOB = ["22P05", "23514", "54000", "FL002", "FL005"]


def refuse_endings(queue: Driver, sqlstate: str, *, times: int, where: str = "true") -> None:
    """The database refuses to write endings with this error, so many times."""
    queue.connection.execute("create sequence public.refused")
    queue.connection.execute(
        "create function public.refuse() returns trigger language plpgsql as $$ begin"
        f" if {where} and nextval('public.refused') <= {times}"
        f" then raise exception 'refused by the test' using errcode = '{sqlstate}'; end if; return new; end $$".encode()
    )
    queue.connection.execute(
        "create trigger zz_refuse before insert on faultline.ledger for each row execute function public.refuse()"
    )
    queue.connection.execute(
        "create trigger zz_refuse before update on faultline.open_jobs for each row"
        " when (old.state = 'running' and new.state <> 'running') execute function public.refuse()"
    )


def counting(app: Faultline) -> Counter[str]:
    """Tasks that count their runs and end in each of the three ways."""
    runs: Counter[str] = Counter()

    @app.task(max_attempts=1)
    async def succeed() -> str:
        runs["succeed"] += 1
        return "done"

    @app.task(max_attempts=2)
    async def retry() -> Any:
        runs["retry"] += 1
        return Retry(after=0) if runs["retry"] == 1 else "done"

    @app.task(max_attempts=1)
    async def snooze() -> Any:
        runs["snooze"] += 1
        return Snooze(0) if runs["snooze"] == 1 else "done"

    return runs


@pytest.mark.parametrize("sqlstate", ABOUT_THE_MOMENT)
def test_an_error_about_the_moment_is_answered_by_sending_the_ending_again(
    app: Faultline, queue: Driver, sqlstate: str
) -> None:
    runs = counting(app)
    refuse_endings(queue, sqlstate, times=7)

    found = results(app, [app.tasks[name].enqueue() for name in ("succeed", "retry", "snooze")])

    assert found == ["done"] * 3
    assert runs == {"succeed": 1, "retry": 2, "snooze": 2}
    assert queue.value("select count(*) from faultline.journal where event <> 'attempt_failed'") == 0
    assert queue.value("select nextval('public.refused')") > 7


@pytest.mark.parametrize("sqlstate", ABOUT_THE_JOB)
def test_an_error_about_the_data_fails_its_own_job_once_and_for_good(app: Faultline, queue: Driver, sqlstate: str) -> None:
    runs: Counter[int] = Counter()

    @app.task(max_attempts=5, backoff=lambda _: 0)
    async def note(n: int) -> int:
        runs[n] += 1
        return n

    queue.connection.execute(
        "create function public.refuse() returns trigger language plpgsql as $$ begin if new.result = '13'::jsonb"
        f" then raise exception 'not with this result' using errcode = '{sqlstate}'; end if; return new; end $$".encode()
    )
    queue.connection.execute(
        "create trigger zz_refuse before insert on faultline.ledger for each row execute function public.refuse()"
    )

    found = results(app, app.enqueue_many(note.bind(n) for n in range(40)))

    assert [n for n in range(40) if found[n] != n] == [13]
    assert isinstance(found[13], JobFailed)
    assert "result cannot be stored" in str(found[13])
    assert set(runs.values()) == {1}


def test_a_row_that_cannot_be_written_holds_up_no_other(app: Faultline, queue: Driver) -> None:
    @app.task
    async def note(n: int) -> int:
        return n

    handles = app.enqueue_many(note.bind(n) for n in range(300))
    refuse_endings(queue, "XX001", times=100_000, where=f"new.job_id = '{handles[100].id}'")
    queue.connection.execute("drop trigger zz_refuse on faultline.open_jobs")

    async def story() -> None:
        await auntil(lambda: queue.value("select count(*) from faultline.ledger") >= 299)
        assert queue.state(handles[100].id) is JobState.RUNNING
        queue.connection.execute("drop trigger zz_refuse on faultline.ledger")
        assert await handles[100].aresult(PATIENCE) == 100

    work(app, story)

    assert queue.value("select count(*) from faultline.journal") == 0


class Faulty(Faults):
    """The worker's own code fails when it sends this statement, so many times."""

    wanted = True

    def __init__(self, statement: str, times: int = 1_000_000) -> None:
        self._point = f"before_{statement}_sent"
        self.left = times

    def reach(self, point: str) -> None:
        if point == self._point and self.left:
            self.left -= 1
            raise RuntimeError("a bug")


@pytest.mark.parametrize(("verb", "endings"), [("complete", 3), ("fail", 1), ("release", 2)])
def test_a_fault_of_the_worker_is_given_up_and_the_leases_are_let_go(
    dsn: str, queue: Driver, log: io.StringIO, verb: str, endings: int
) -> None:
    """`settle` waits for the last ending, and sees that no lease is kept."""
    kinds: dict[str, Callable[[Lease], Ending]] = {
        "complete": lambda lease: Completed(hold(lease), "1"),
        "fail": lambda lease: Failed(hold(lease), Failure("x", then="fail")),
        "release": lambda lease: Released(hold(lease), 0.0),
    }

    states = settle(dsn, queue, lambda leases: list(map(kinds[verb], leases)), endings, Host(faults=Faulty(verb)))

    assert states == [JobState.RUNNING] * endings  # until the leases expire
    assert len(logged(log, "completion_failed")) == endings
    assert {line["error"] for line in logged(log, "completion_failed")} == {"RuntimeError: a bug"}


def test_a_fault_of_the_worker_that_passes_costs_nothing(dsn: str, queue: Driver, log: io.StringIO) -> None:
    def endings(leases: list[Lease]) -> list[Ending]:
        return [Completed(hold(lease), "1") for lease in leases]

    assert settle(dsn, queue, endings, 3, Host(faults=Faulty("complete", 9))) == [JobState.SUCCEEDED] * 3
    assert logged(log, "completion_failed") == []


def test_a_fault_that_meets_one_job_does_not_end_the_worker_and_one_that_meets_all_does(dsn: str, queue: Driver) -> None:
    helpless: list[int] = []

    def endings(leases: list[Lease]) -> list[Ending]:
        return [Completed(hold(lease), "1") for lease in leases]

    settle(dsn, queue, endings, 9, Host(faults=Faulty("complete")), helpless.append)
    assert helpless == []

    settle(dsn, queue, endings, 11, Host(faults=Faulty("complete")), helpless.append)
    assert helpless == [10, 11]


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (RuntimeError("a bug"), True),
        (psycopg.ProgrammingError("the query has 2 placeholders but 3 parameters were passed"), True),
        (psycopg.InterfaceError("in pipeline mode"), True),
        (ConfigError("invalid DSN"), True),
        (psycopg.OperationalError("the connection is closed"), False),
        (psycopg.errors.UndefinedTable("no such table"), False),
        (PermissionDenied("faultline.complete"), False),
        (OutcomeUnknown("lost"), False),
        (OSError(24, "too many open files"), False),
        (MemoryError(), False),
    ],
)  # fmt: skip
def test_only_a_fault_of_this_program_is_given_up(error: Exception, *, ours: bool) -> None:
    assert is_ours_to_mend(error) is ours


def test_a_start_that_cannot_be_recorded_yet_is_asked_for_again(app: Faultline, queue: Driver) -> None:
    """The start of a last attempt is put on record. Its lease of thirty seconds is longer than this test waits."""
    runs = counting(app)
    queue.connection.execute("create sequence public.refused")
    queue.connection.execute(
        "create function public.refuse() returns trigger language plpgsql as $$ begin if nextval('public.refused') <= 3"
        " then raise exception 'refused by the test' using errcode = '55P03'; end if; return new; end $$"
    )
    queue.connection.execute(
        "create trigger zz_refuse before update on faultline.open_jobs for each row"
        " when (new.started and not old.started) execute function public.refuse()"
    )

    assert results(app, [app.tasks["succeed"].enqueue()]) == ["done"]
    assert runs == {"succeed": 1}


@contextlib.contextmanager
def locked(dsn: str, table: str, mode: str) -> Iterator[psycopg.Connection]:
    """Somebody holds a lock on a whole table until the end of this block."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"lock table {table} in {mode} mode".encode())
        yield connection


def waiting_for_a_lock(queue: Driver) -> list[int]:
    """The sessions of a worker whose `complete` waits for a lock."""
    found: list[int] = queue.value(
        "select coalesce(array_agg(pid), '{}') from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock' and query like '%faultline.complete%'"
    )
    return found


def test_a_cancelled_completion_is_sent_again(app: Faultline, queue: Driver, dsn: str) -> None:
    """The ledger is locked as `create index` locks it, and somebody cancels the statement that waits for it."""
    runs = counting(app)
    cancelled = 0

    async def story() -> Any:
        nonlocal cancelled
        handle = app.tasks["succeed"].enqueue()
        with locked(dsn, "faultline.ledger", "share"):
            while cancelled < 3:
                for pid in waiting_for_a_lock(queue):
                    cancelled += bool(queue.value("select pg_cancel_backend(%s)", pid))
                await asyncio.sleep(0.01)
        return await handle.aresult(PATIENCE)

    assert work(app, story) == "done"
    assert runs == {"succeed": 1}
    assert queue.value("select count(*) from faultline.journal") == 0


@pytest.mark.long
def test_a_table_that_is_locked_for_longer_than_a_statement_waits_costs_no_job_anything(
    app: Faultline, queue: Driver, dsn: str
) -> None:
    """Slow on purpose: a worker's statements wait for a lock for ten seconds."""
    runs = counting(app)

    async def story() -> list[Any]:
        handles = [app.tasks[name].enqueue() for name in ("succeed", "retry", "snooze")]
        await auntil(lambda: sum(runs.values()) >= 3)
        with locked(dsn, "faultline.ledger", "access exclusive"), locked(dsn, "faultline.open_jobs", "access exclusive"):
            await asyncio.sleep(12)
        return await asyncio.gather(*(handle.aresult(PATIENCE) for handle in handles))

    assert work(app, story) == ["done"] * 3
    assert runs == {"succeed": 1, "retry": 2, "snooze": 2}
    assert queue.value("select count(*) from faultline.journal where event <> 'attempt_failed'") == 0


def test_migrating_beside_a_busy_worker_costs_no_job_anything(app: Faultline, queue: Driver, dsn: str) -> None:
    runs: Counter[int] = Counter()

    @app.task(max_attempts=1)
    async def note(n: int) -> None:
        runs[n] += 1
        await asyncio.sleep(0.001)

    app.enqueue_many(note.bind(n) for n in range(3000))

    def migrate_again() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            note_another_text(connection)
            assert migrate.migrate(connection) == ["definitions"]

    async def story() -> None:
        while queue.value("select count(*) from faultline.jobs where state not in ('succeeded', 'failed')"):
            await asyncio.to_thread(migrate_again)

    work(app, story)

    assert queue.value("select count(*) from faultline.ledger") == 3000
    assert set(runs.values()) == {1}
    assert queue.value("select count(*) from faultline.journal") == 0


class OutOfHands(Leases):
    """Notes which leases were dropped."""

    def __init__(self) -> None:
        self.holds: list[HeldLease] = []
        self.permits = None

    def drop(self, holds: Sequence[HeldLease]) -> None:
        self.holds.extend(holds)


def settle(
    dsn: str,
    queue: Driver,
    endings: Callable[[list[Lease]], list[Ending]],
    jobs: int,
    host: Host | None = None,
    on_helpless: Callable[[int], None] = lambda _: None,
) -> list[JobState]:
    """Write these endings of so many claimed jobs with a completer of its own."""
    ids = [queue.enqueue() for _ in range(jobs)]
    leases = sorted(queue.claim(jobs), key=lambda lease: ids.index(lease.job_id))

    async def story() -> None:
        database, out_of_hands = AsyncDatabase(dsn, host=host), OutOfHands()
        completer = Completer(database, out_of_hands, Tally(lambda: 0.0), on_helpless=on_helpless)
        for ending in endings(leases):
            completer.put(ending)
        async with asyncio.timeout(PATIENCE):
            await completer.flushed()
        await database.close()
        assert {hold.lease for hold in out_of_hands.holds} == set(leases)

    asyncio.run(story())
    return [queue.state(job_id) for job_id in ids]


def hold(lease: Lease) -> HeldLease:
    return HeldLease(lease, 0.0, Tally(lambda: 0.0).of("default"))


def test_a_failure_that_cannot_be_encoded_is_written_plainly_and_the_others_as_they_are(dsn: str, queue: Driver) -> None:
    bad: Any = ValueError("no text")

    def endings(leases: list[Lease]) -> list[Ending]:
        return [Failed(hold(lease), Failure(bad if n == 2 else "x", then="fail")) for n, lease in enumerate(leases)]

    assert settle(dsn, queue, endings, 5) == [JobState.FAILED] * 5
    assert queue.value("select count(*) from faultline.jobs where last_error like '%cannot be stored%'") == 1


@pytest.mark.parametrize("delay", [float("nan"), -0.5, 1e300, "soon"])
def test_a_release_that_the_database_refuses_is_written_plainly_and_the_others_as_they_are(
    dsn: str, queue: Driver, delay: Any
) -> None:
    def endings(leases: list[Lease]) -> list[Ending]:
        return [Released(hold(lease), delay if n == 2 else 0.0) for n, lease in enumerate(leases)]

    assert settle(dsn, queue, endings, 5) == [JobState.QUEUED] * 5


def test_a_job_to_be_given_back_that_may_have_ended_is_looked_for_first(dsn: str, queue: Driver) -> None:
    """Held, completed by the attempt itself, and lost to another worker: each is told as what it is."""
    holds: list[HeldLease] = []

    def endings(leases: list[Lease]) -> list[Ending]:
        holds.extend(hold(lease) for lease in leases)
        queue.complete(leases[1])
        queue.release(leases[2])
        assert queue.claim_one(worker="another").job_id == leases[2].job_id
        return [Released(one, 60.0, may_have_ended=True) for one in holds]

    assert settle(dsn, queue, endings, 3) == [JobState.QUEUED, JobState.SUCCEEDED, JobState.RUNNING]

    assert [queue.refusals(one.lease.job_id) for one in holds] == [[], [], [("release", "token_mismatch")]]
    assert [one.counts.released for one in holds] == [1, 0, 0]
    assert [one.counts.succeeded for one in holds] == [0, 1, 0]


def test_a_result_that_the_database_refuses_fails_its_own_job(dsn: str, queue: Driver) -> None:
    def endings(leases: list[Lease]) -> list[Ending]:
        return [Completed(hold(lease), '"\\u0000"' if n == 2 else "1") for n, lease in enumerate(leases)]

    states = settle(dsn, queue, endings, 5)

    assert [n for n, state in enumerate(states) if state is JobState.FAILED] == [2]
    assert states.count(JobState.SUCCEEDED) == 4


def test_a_sender_that_raises_is_asked_again_and_nothing_is_forgotten() -> None:
    sent: list[list[int]] = []

    async def send(batch: list[int]) -> None:
        if len(sent) < 2:
            sent.append([])
            raise RuntimeError("a bug")
        sent.append(batch)

    async def story(send: Callable[[list[int]], Awaitable[None]]) -> None:
        batcher = Batcher(send, again_seconds=0.01)
        batcher.put(1)
        await asyncio.sleep(0)
        batcher.put(2)
        async with asyncio.timeout(PATIENCE):
            await batcher.flushed()

    asyncio.run(story(send))

    assert sent in ([[], [], [1], [2]], [[], [], [1, 2]])
