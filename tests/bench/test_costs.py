"""What a job costs in bytes of WAL, in statements and in instructions of Python does not creep up. Times are printed and
never judged here: instructions are as many on a loaded machine.

The bytes are those of the statements: images of whole pages, which depend on checkpoints, are not counted, and nothing else
writes to this server.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import faultline
from faultline.app.application import Faultline
from faultline.core.model import Submission
from faultline.store import scratch
from faultline.store.database import Database
from faultline_proof.bench import dissect, limit
from faultline_proof.bench.protocol import ARGS, drain
from faultline_proof.servers import IN_MEMORY, own_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    Record = Callable[[str, object], None]

pytestmark = pytest.mark.long

#: Bytes of WAL per job as measured, batches of 300 with 130 bytes of arguments: whoever makes them fewer writes so here.
WAL_BYTES = {"enqueue": 447.8, "claim": 333.2, "complete": 396.2}
MARGIN = 1.03
#: Claims and completions, for a thousand jobs. A worker sends about ten; how many depends on its speed, so this is wide.
STATEMENTS_MAX = 25
#: What a worker sends by the clock or once, however many jobs there are.
BY_THE_CLOCK = {
    "due_schedules",
    "wake_changed_programs",
    "declare_queue",
    "limited",
    "maintain_limits",
    "heartbeat",
    "tally",
    "sample",
    "resolve",
    "sweep",
    "first_expired",
    "reap",
    "expire",
    "prune",
    "roll_up",
    "reconcile",
    "unregister_worker",
    "renew",
    "announce",
    # What a claim was granted that was on its way when the worker stopped.
    "claimed_by",
}
#: Instructions of the interpreter for a job that does nothing, from claim to completion, as measured with this version: in
#: functions that are called for every job, and in Faultline's loops over the jobs of a batch. What else the worker goes
#: through, asyncio's turns above all, depends on how many batches there are and so on the load: about 370 on a free machine.
INSTRUCTIONS = {(3, 11): (626, 350)}
INSTRUCTIONS_MARGINS = (1.02, 1.1)
IN_A_LOOP = 5
JOBS = 3000


@pytest.fixture(scope="module")
def quiet_server() -> Iterator[str]:
    with own_server(IN_MEMORY) as dsn:
        yield dsn


@pytest.fixture
def quiet_dsn(quiet_server: str) -> Iterator[str]:
    with scratch.database(quiet_server) as dsn:
        yield dsn


def wal_bytes(dsn: str) -> dict[str, float]:
    records = limit.written(dsn, JOBS, limit.JUDGED_BATCH)
    return {verb: sum(record.size for record in found) / JOBS for verb, found in records.items()}


def too_much(found: dict[str, float]) -> dict[str, float]:
    return {verb: size for verb, size in found.items() if size > MARGIN * WAL_BYTES[verb]}


def test_a_job_writes_no_more_wal_than_it_did(quiet_dsn: str, record_property: Record) -> None:
    found = wal_bytes(quiet_dsn)

    record_property("figure", "WAL per job: " + ", ".join(f"{verb} {size:.1f} B" for verb, size in found.items()))
    assert min(found.values()) > 0
    assert too_much(found) == {}


def test_one_needless_write_per_job_is_noticed(quiet_dsn: str) -> None:
    """The guard itself: a completion that touches its row once more is more than the bound allows."""
    with Database(quiet_dsn).connect() as connection:
        row = connection.execute("select pg_get_functiondef('faultline.complete'::regproc)").fetchone()
        assert row is not None
        work = "perform faultline.set_current_verb('complete');"
        needless = "update faultline.open_jobs j set renewals = j.renewals + 1 where j.id = any (complete.job_ids);"
        assert work in row[0]
        connection.execute(row[0].replace(work, f"{work} {needless}").encode())

    assert set(too_much(wal_bytes(quiet_dsn))) == {"complete"}


def test_a_worker_sends_few_statements_for_many_jobs(quiet_dsn: str, record_property: Record) -> None:
    with Faultline(quiet_dsn) as app, app.database.connect() as connection:
        app.enqueue_many([Submission("bench", ARGS, queue="bench")] * JOBS)
        bare = drain(connection, JOBS)
        app.enqueue_many([Submission("nothing", ARGS, queue="worker")] * JOBS)

        found = dissect.counted(quiet_dsn, "worker", JOBS)

    sent = {verb: number for verb, number in found["statements"].items() if verb not in BY_THE_CLOCK}
    share = 100 * JOBS / found["seconds"] / bare.rate
    record_property(
        "figure", f"a worker beside all other tests: {share:.0f} % of the bare loop; for {JOBS} jobs it sent {sent}"
    )
    assert set(sent) == {"claim", "complete"}
    assert sum(sent.values()) / JOBS * 1000 <= STATEMENTS_MAX


@pytest.mark.parametrize("rate", [100, 500])
def test_a_worker_sends_few_statements_at_a_steady_rate(quiet_dsn: str, record_property: Record, rate: int) -> None:
    """One claim and one completion a job at most, and few that found nothing. A busy machine sends fewer."""
    jobs = 2 * rate

    def enqueue() -> None:
        for n in range(jobs):
            time.sleep(max(0.0, begun + n / rate - time.monotonic()))
            app.enqueue("nothing", queue="worker")

    with Faultline(quiet_dsn) as app, ThreadPoolExecutor(1) as beside:
        begun = time.monotonic() + 0.5
        enqueuing = beside.submit(enqueue)
        found = dissect.counted(quiet_dsn, "worker", jobs)
        enqueuing.result()

    sent = {verb: number / jobs for verb, number in found["statements"].items() if verb not in BY_THE_CLOCK}
    record_property("figure", f"a worker at {rate} jobs/s: {sent} statements a job")
    assert set(sent) == {"claim", "complete"}
    assert sent["claim"] <= 1.3
    assert sent["complete"] <= 1.05


def test_what_a_dissection_names_is_there() -> None:
    """A file that was moved would be counted as something else, silently."""
    package = Path(faultline.__file__).parent
    named = {name.partition(":")[0] for name in dissect._PARTS}  # noqa: SLF001

    assert {
        name for name in named if name.startswith(("app/", "store/", "worker/")) and not (package / name).exists()
    } == set()


class Instructions(NamedTuple):
    """Of the event loop's thread, for one job."""

    called: float
    looped: float
    all: float


def instructions(dsn: str) -> Instructions:
    counts: Counter[CodeType] = Counter()
    calls: Counter[CodeType] = Counter()

    def inside(frame: FrameType, event: str, _: Any) -> Any:
        counts[frame.f_code] += event == "opcode"
        return inside

    def called(frame: FrameType, _: str, __: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        calls[frame.f_code] += 1
        return inside

    async def work(app: Faultline) -> None:
        @app.task
        async def nothing(n: int) -> None: ...

        await app.aenqueue_many([nothing.bind(n=n) for n in range(JOBS)])
        async with asyncio.timeout(60), app.worker({"default": 100}) as worker:
            sys.settrace(called)
            try:
                while worker.report()["queues"]["default"]["succeeded"] < JOBS:
                    await asyncio.sleep(0.1)
            finally:
                sys.settrace(None)
        await app.aclose()

    asyncio.run(work(Faultline(dsn)))
    for_each = {code for code in counts if calls[code] >= JOBS and "/asyncio/" not in code.co_filename}
    own = {code for code in counts if code.co_filename.startswith(str(Path(faultline.__file__).parent))}
    loops = {code for code in own - for_each if counts[code] >= IN_A_LOOP * JOBS}
    return Instructions(
        sum(counts[code] for code in for_each) / JOBS, sum(counts[code] for code in loops) / JOBS, counts.total() / JOBS
    )


def test_a_job_takes_no_more_instructions_than_it_did(quiet_dsn: str, record_property: Record) -> None:
    found = instructions(quiet_dsn)

    record_property(
        "figure",
        f"instructions of Python per job: {found.called:.0f} in functions called for each, {found.looped:.0f} in loops over"
        f" jobs, {found.all:.0f} in all",
    )
    known = INSTRUCTIONS.get(sys.version_info[:2], (10_000, 10_000))
    assert found.called > 300
    assert found.called <= INSTRUCTIONS_MARGINS[0] * known[0]
    assert found.looped <= INSTRUCTIONS_MARGINS[1] * known[1]
