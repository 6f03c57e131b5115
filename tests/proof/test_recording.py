"""What goes over a wire becomes operations: told by hand, and by a worker on a real database whose wires are cut."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from faultline import Faultline, Job, Retry, Snooze
from faultline.core import faults
from faultline.core.ids import Ids
from faultline.core.model import Failure, Lease, Submission
from faultline.store import verbs
from faultline.store.install import migrate
from faultline_proof import tape
from faultline_proof.checker import check
from faultline_proof.faults import Limits, Rule
from faultline_proof.history import Final, History
from faultline_proof.recording import Line
from faultline_proof.tape import Recording
from tests.driver import Driver
from tests.schema.test_model import EXAMPLES, Verbs
from tests.worker.working import work

if TYPE_CHECKING:
    from pathlib import Path

    from faultline.store.statement import Statement
    from faultline_proof.recording import Call
    from tests.driver import Clock

JOB, OTHER = UUID(int=7), UUID(int=8)


class Wire:
    """A wire without a database: the test says what is answered."""

    def __init__(self) -> None:
        self.history = History()
        self._line = Line(self.history, "w", itertools.count(1).__next__)

    def send(self, statement: Statement[Any] | str) -> Call:
        if isinstance(statement, str):
            return self._line.sent(statement)
        return self._line.sent(statement.sql.encode(), statement.params)

    def told(self) -> list[tuple[Any, ...]]:
        """(verb, job, token, owner, outcome, detail) of every operation."""
        return [
            (op.verb, op.job_id and UUID(op.job_id).int, op.token, op.owner, op.outcome, op.detail)
            for op in self.history.operations
        ]


@pytest.fixture
def wire() -> Wire:
    return Wire()


def lease(job_id: UUID = JOB, token: int = 1, owner: str = "w/1") -> Lease:
    return Lease(job_id, token, "t", {}, 1, 5, False, 0, 0, datetime.now(UTC), 30, None, False, None, owner)


def test_a_batch_is_one_operation_for_each_of_its_leases(wire: Wire) -> None:
    awkward = 'w"\\,/1'
    call = wire.send(verbs.complete([lease(), lease(OTHER, 3, awkward), lease()], ["1", "2", "3"]))
    assert [op[4] for op in wire.told()] == ["unknown", "unknown"]

    call.answered([(OTHER, 3, awkward, "token_mismatch", 4)])

    assert wire.told() == [
        ("complete", 7, 1, "w/1", "ok", None),
        ("complete", 8, 3, awkward, "failed", "token_mismatch"),
    ]


def test_of_two_owners_with_one_token_the_refused_one_is_told(wire: Wire) -> None:
    wire.send(verbs.renew([lease(), lease(owner="w/2"), lease(OTHER)])).answered([(JOB, 1, "w/2", "token_mismatch", 1)])

    assert [op[4] for op in wire.told()] == ["ok", "failed", "ok"]


def test_a_claim_becomes_what_it_was_granted(wire: Wire) -> None:
    wire.send(verbs.claim("q", owner="w/1", max_jobs=2)).answered([(JOB, 1), (OTHER, 4)])
    wire.send(verbs.claim("q", owner="w/2", max_jobs=2)).lost()
    wire.send(verbs.claimed_by("w/2")).answered([(JOB, 2)])

    assert wire.told() == [
        ("claim", None, None, "w/1", "ok", None),
        ("claim", 7, 1, "w/1", "ok", None),
        ("claim", 8, 4, "w/1", "ok", None),
        ("claim", None, None, "w/2", "unknown", None),
        ("claimed_by", None, None, "w/2", "ok", None),
        ("claimed_by", 7, 2, "w/2", "ok", None),
    ]


def test_a_submission_is_told_by_the_ids_that_the_client_made_or_those_of_the_answer(wire: Wire) -> None:
    fresh = verbs.enqueue_many([Submission("t"), Submission("t")], Ids())
    wire.send(fresh).answered([])
    known = verbs.enqueue_many([Submission("t", idempotency_key="k"), Submission("t", id=JOB)])
    wire.send(known).answered([(OTHER, False), (JOB, True)])

    assert [UUID(str(op.job_id)) for op in wire.history.operations] == [
        *(placed.job_id for placed in fresh.read([])),
        OTHER,
        JOB,
    ]
    assert [op.key for op in wire.history.operations] == [None, None, "k", None]


@pytest.mark.parametrize(
    ("statement", "rows", "expected"),
    [
        (verbs.step(lease(), "paid", 1), [], ("step", 7, 1, "w/1", "ok", "paid")),
        (verbs.progress(lease(), 1), [(JOB, 1, "w/1", "lease_lost", 1)], ("progress", 7, 1, "w/1", "failed", "lease_lost")),
        (verbs.fence(lease()), [("",)], ("fence", 7, 1, "w/1", "ok", None)),
        (verbs.cancel(JOB), [("cancelled",)], ("cancel", 7, None, None, "ok", None)),
        (verbs.retry(JOB), [("queued",)], ("retry", 7, None, None, "ok", None)),
        (verbs.fail([lease()], [Failure("x")]), [], ("fail", 7, 1, "w/1", "ok", None)),
        (verbs.release([lease()]), [(JOB, 1, "w/1", "busy", 1)], ("release", 7, 1, "w/1", "failed", "busy")),
        (verbs.reap(), [(JOB, 1, "w/1", "queued", "lease_expired")], ("reap", 7, 1, "w/1", "ok", None)),
        (verbs.suspend([lease()], ["[]"]), [], ("suspend", 7, 1, "w/1", "ok", None)),
        (verbs.record(lease(), []), [(JOB, 1, "w/1", "lease_lost", 1)], ("record", 7, 1, "w/1", "failed", "lease_lost")),
        (verbs.collect_outcomes(lease(), "1"), [("open", None, None, None)], ("collect_outcomes", 7, 1, "w/1", "ok", None)),
        (
            verbs.collect_outcomes(lease(), "1"),
            [("stale", None, "lease_lost", 2)],
            ("collect_outcomes", 7, 1, "w/1", "failed", "lease_lost"),
        ),
        (verbs.signal(JOB, "go", key="k"), [(True,)], ("signal", 7, None, None, "ok", None)),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_every_verb_is_understood(
    wire: Wire, statement: Statement[Any], rows: list[tuple[Any, ...]], expected: tuple[Any, ...]
) -> None:
    wire.send(statement).answered(rows)

    assert wire.told()[-1] == expected


def test_reading_is_no_operation(wire: Wire) -> None:
    wire.send(verbs.recall(lease(), "paid")).answered([])
    wire.send(verbs.unregister_worker("w")).answered([])

    assert wire.told() == []


# Transactions: what counts is the commit


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda wire: wire.send("commit").answered(), "ok"),
        (lambda wire: wire.send("commit").lost(), "unknown"),
        (lambda wire: wire.send("commit").refused("serialization failure"), "failed"),
        (lambda wire: wire.send("rollback").answered(), "failed"),
        (lambda wire: wire.send("select 1").lost(), "failed"),
        (lambda wire: (wire.send("select 1/0").refused("division"), wire.send("commit").answered()), "failed"),
        (lambda _: None, "unknown"),
    ],
    ids=["committed", "commit lost", "commit refused", "rolled back", "lost before", "broken", "died"],
)
def test_a_transaction_stands_and_falls_with_its_commit(wire: Wire, end: Any, outcome: str) -> None:
    wire.send("begin").answered()
    wire.send(verbs.fence(lease())).answered([("",)])
    wire.send(verbs.complete([lease()], ["1"])).answered([])
    assert [op[4] for op in wire.told()] == ["unknown"] * 2

    end(wire)

    assert [op[4] for op in wire.told()] == [outcome] * 2


def test_after_a_transaction_every_answer_stands_for_itself(wire: Wire) -> None:
    wire.send("begin").answered()
    wire.send("select 1/0").refused("division")
    wire.send("rollback").answered()

    wire.send(verbs.renew([lease()])).answered([])

    assert [op[4] for op in wire.told()] == ["ok"]


# A real database


class Taped:
    """A tape in memory."""

    def __init__(self, process: str) -> None:
        self._file = io.BytesIO()
        self.recording = Recording(self._file, process)
        self._start = self._file.tell()

    def history(self) -> History:
        history = History()
        tape.replay(self._file.getvalue(), history)
        return history

    def forget(self) -> None:
        self._file.truncate(self._start)
        self._file.seek(self._start)


CUTS = [
    point
    for point in faults.POINTS
    if point.endswith(("_sent", "_committed"))
    and "_beat_" not in point
    and point not in {*faults.FLOW_POINTS, *faults.SCHEDULE_POINTS}
]


class CutEvery(faults.Faults):
    """Cuts the wire at every so-manieth point that is reached, whichever that is. Heartbeats and readers go free."""

    wanted = True

    def __init__(self, nth: int, times: int) -> None:
        self._nth = nth
        self._times = times
        self.cuts: Counter[str] = Counter()
        self._visits = 0

    def reach(self, point: str) -> None:
        if point in CUTS and self.cuts.total() < self._times:
            self._visits += 1
            if self._visits % self._nth == 0:
                self.cuts[point] += 1
                raise faults.WireCut(point)


JOBS = 40


def run_recorded(dsn: str, recording: Recording, cutting: faults.Faults) -> None:
    """A worker in this process, its wires cut again and again, until everything has ended."""
    with Faultline(dsn, host=recording.host(faults=cutting)) as app:
        starts: Counter[int] = Counter()

        @app.task(max_attempts=9, backoff=lambda _: 0, lease=2)
        async def busy(job: Job, n: int) -> object:
            starts[n] += 1
            if starts[n] == 1 and n % 5 == 0:
                return Retry(after=0)
            if starts[n] == 1 and n % 5 == 1:
                return Snooze(0.01)
            await job.step("paid", lambda: n)
            await job.progress({"n": n})
            return n

        @app.task(max_attempts=9, backoff=lambda _: 0, lease=2)
        async def pay(job: Job, n: int) -> None:
            async with job.transaction() as tx:
                await tx.execute("insert into effects values (%s, %s)", (job.id, job.fencing_token))
                tx.complete(n)

        jobs = [task.bind(n) for n in range(JOBS // 2) for task in (busy, pay)]
        handles = [*app.enqueue_many(jobs), busy.options(idempotency_key="k").enqueue(0)]
        busy.options(idempotency_key="k").enqueue(0)
        app.cancel(busy.options(delay=3600).enqueue(1).id)

        async def story() -> None:
            await asyncio.gather(*(handle.aresult(30) for handle in handles))

        work(app, story)


@pytest.fixture
def effects(queue: Driver) -> str:
    queue.connection.execute("create table effects (job_id uuid, token bigint)")
    return "select job_id, token from effects"


def test_what_a_worker_saw_agrees_with_the_database(dsn: str, queue: Driver, effects: str, tmp_path: Path) -> None:
    cutting = CutEvery(nth=7, times=25)
    with Recording.to(tmp_path / "w", "w") as recording:
        run_recorded(dsn, recording, cutting)
    history = tape.read([tmp_path / "w"])

    final = Final.read(queue.connection, effects=effects)
    limits = Limits(effects_of=frozenset({"pay"}), faults_stopped_at=0.0, seconds_to_end=lambda _: 30.0)
    assert list(map(str, check(history, final, limits))) == []

    seen = Counter((op.verb, op.outcome) for op in history.operations if op.job_id is not None)
    assert cutting.cuts.total() == 25
    assert len(final.jobs) == JOBS + 2
    assert seen["enqueue", "ok"] >= JOBS + 2
    assert seen["complete", "ok"] >= JOBS
    assert {"claim", "complete", "fail", "release", "step", "progress", "fence", "cancel"} <= {verb for verb, _ in seen}


def test_the_checker_accepts_whatever_the_verbs_do(dsn: str, queue: Driver, clock: Clock) -> None:
    """The moves are those of the model's test. What was pruned the checker cannot follow: an id or a key that is used again
    after it was forgotten makes another job.
    """
    on_tape = Taped("m")
    checked = itertools.count(1)
    with on_tape.recording.connect(dsn, autocommit=True) as connection:

        class Recorded(Verbs):
            def __init__(self) -> None:
                super().__init__(Driver(connection), clock)
                on_tape.forget()

            def teardown(self) -> None:
                super().teardown()
                if self.went_well and not self.model.pruned:
                    faults = check(on_tape.history(), Final.read(queue.connection))
                    assert list(map(str, faults)) == []
                    next(checked)

        run_state_machine_as_test(Recorded, settings=settings(EXAMPLES, max_examples=25))

    assert next(checked) > 10


def test_a_worker_on_a_protocol_that_does_not_fence_is_found_out(dsn: str, queue: Driver, effects: str) -> None:
    """A stale worker's completion is taken for the current one's: `complete` without its where clause."""
    text = migrate.definitions().text
    start = text.index("create or replace function faultline.complete(")
    complete = text[start : text.index("$$;", start) + 3]
    queue.connection.execute(complete.replace("j.fencing_token = l.token and j.lease_owner = l.owner", "true").encode())
    on_tape = Taped("w")
    with Faultline(dsn, host=on_tape.recording.host()) as app:
        run = app.database.run
        run(verbs.enqueue_many([Submission("t")], Ids()))
        (stale,) = run(verbs.claim("default", owner="a/1", max_jobs=1))
        run(verbs.release([stale]))
        run(verbs.claim("default", owner="b/1", max_jobs=1))
        run(verbs.complete([stale], ["1"]))

    rules = {fault.rule for fault in check(on_tape.history(), Final.read(queue.connection, effects=effects))}

    assert rules == {Rule.NEWEST_TOKEN, Rule.LEGAL, Rule.ONCE}


def test_a_submission_of_several_statements_stands_and_falls_with_its_commit(dsn: str, queue: Driver) -> None:
    on_tape = Taped("c")
    with Faultline(dsn, host=on_tape.recording.host()) as app:
        app.enqueue_many([Submission("t")] * 4001)
    history = on_tape.history()

    assert Counter((op.verb, op.outcome) for op in history.operations) == {("enqueue", "ok"): 4001}
    assert check(history, Final.read(queue.connection)) == []
