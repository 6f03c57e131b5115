"""One measurement of one system: a fresh store, a driver that enqueues, workers that run, and what the jobs' stamps say.

The rate of a drain is the same for every system. All jobs are enqueued before the workers start. The window opens when a
tenth of the jobs have started *and* every worker process has started one, so start-up is not counted; it closes with the
start of the last job. Rate = jobs started within the window / its length. How long it then takes until the system's own
store holds no job as open is told beside it, and its CPU belongs to the jobs. A drain longer than the cap is cut there.
"""

from __future__ import annotations

import os
import statistics
import struct
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench import install
from bench.catalog import PEERS, SYSTEMS
from bench.processes import Failed, Program, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.catalog import System
    from bench.stores import Account, Store

_STAMP = struct.Struct("<ddq")
_START_SECONDS, _ENQUEUE_SECONDS, _FIRST_SECONDS, CAP_SECONDS = 20.0, 40.0, 15.0, 9.0
_SETTLE_SECONDS = 10.0
_WARM_SECONDS = 0.5
_LEAST = 20


@dataclass(frozen=True, slots=True)
class Stamp:
    sent: float
    started: float
    pid: int


@dataclass(frozen=True, slots=True)
class Drain:
    """What a drain of prefilled jobs took. Per job: CPU of the window, WAL and transactions of the workers' whole life."""

    jobs: int
    rate: float
    window_seconds: float
    window_jobs: int
    settle_seconds: float
    cut: bool
    processes: int
    bulk_rate: float
    bulk_wal: float
    run_wal: float
    store_cpu: float
    client_cpu: float
    transactions: float

    def told(self) -> dict[str, Any]:
        return asdict(self)


class Bench:
    """A system in a fresh store, with its driver up. Everything that was started is stopped on the way out."""

    def __init__(
        self, system: System, store: Store, workload: str, hashes: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.system = system
        self.store = store
        handle, name = tempfile.mkstemp(prefix="bench-stamps-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)  # noqa: S108
        os.close(handle)
        self._stamps = Path(name)
        self._seen = 0
        self._pids: set[int] = set()
        self._programs: list[Program] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FAULTLINE_"))},
            "BENCH_STAMPS": name,
            "BENCH_WORKLOAD": workload,
            "BENCH_HASHES": str(hashes),
            "PYTHONPATH": str(SYSTEMS),
            "PYTHONDONTWRITEBYTECODE": "",
            **(settings or {}),
        }
        if system.key == "faultline":
            self._env["PYTHONPATH"] += os.pathsep + str(SYSTEMS.parents[1] / "src")

    def __enter__(self) -> Self:
        try:
            self._env |= self.store.fresh(self.system, self._env)
            self.driver = self._start("drive", talks=True)
            self.driver.answer(_START_SECONDS, "being started")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.stop()
        self._stamps.unlink(missing_ok=True)

    def work(self, processes: int = 1, first: int = 0) -> list[Program]:
        """Start workers, each with a number of its own: one that is started with the number of another is its successor."""
        return [self._start("work", number=number) for number in range(first, first + processes)]

    def bulk(self, kind: str, jobs: int, size: int = 0) -> float:
        """Enqueue many; jobs a second."""
        answer = self.driver.ask({"do": "bulk", "kind": kind, "jobs": jobs, "size": size}, _ENQUEUE_SECONDS)
        return jobs / float(answer["seconds"])

    def count(self) -> int:
        return self._stamps.stat().st_size // _STAMP.size

    def stamps(self) -> list[Stamp]:
        whole = self._stamps.read_bytes()
        return [Stamp(*fields) for fields in _STAMP.iter_unpack(whole[: len(whole) // _STAMP.size * _STAMP.size])]

    def left(self) -> int:
        return int(self.driver.ask({"do": "left"}, 10)["left"])

    def pids(self) -> set[int]:
        """The processes that have started a job so far. Reads only what is new: this is asked while they work."""
        with self._stamps.open("rb") as stamps:
            stamps.seek(self._seen * _STAMP.size)
            new = stamps.read()
        many = len(new) // _STAMP.size
        self._seen += many
        self._pids.update(fields[2] for fields in _STAMP.iter_unpack(new[: many * _STAMP.size]))
        return self._pids

    def settled(self, jobs: int, seconds: float) -> float:
        """Wait until every job has run and none is open. Gives when that was asked: the question itself can be slow."""
        give_up = time.monotonic() + seconds
        while True:
            asked = time.time()
            left = self.left()
            if self.count() >= jobs and left == 0:
                return asked
            if time.monotonic() > give_up:
                raise Failed(f"{seconds:g} s after the last job {left} were not recorded as done")
            time.sleep(0.01)

    def _start(self, action: str, *, talks: bool = False, number: int = 0) -> Program:
        return self.start([*install.command(self.system), action], number, talks=talks)

    def start(self, words: list[str], number: int, *, talks: bool = False) -> Program:
        log = PEERS / "log" / f"{self.system.key}-{number}{'-driver' if talks else ''}.log"
        program = Program(words, {**self._env, "BENCH_WORKER": str(number)}, log, talks=talks)
        self._programs.append(program)
        return program


def drain(bench: Bench, kind: str, jobs: int, processes: int, size: int = 0) -> Drain:
    bench.store.settle()
    before = bench.store.account()
    bulk_rate = bench.bulk(kind, jobs, size)
    filled = bench.store.account()
    workers = bench.work(processes)
    opened, at_opening, clients = _wait_for_the_window(bench, workers, jobs, processes)
    cut = _wait_for_the_end(bench, workers, jobs)
    settled = time.time() if cut else bench.settled(jobs, _SETTLE_SECONDS)
    at_end = bench.store.account()
    clients = cpu_seconds(worker.pid for worker in workers) - clients
    stamps = bench.stamps()
    for worker in workers:
        worker.stop()
    after = bench.store.account()
    window = [stamp for stamp in stamps if stamp.started > opened]
    ended = max((stamp.started for stamp in stamps), default=opened)
    seconds = ended - opened
    ran_in = len({stamp.pid for stamp in stamps})
    if ran_in < processes or len(window) < _LEAST:
        raise Failed(f"{ran_in} of {processes} processes ran jobs, {len(window)} of {jobs} jobs after all were up")
    return Drain(
        jobs=jobs,
        rate=len(window) / seconds,
        window_seconds=seconds,
        window_jobs=len(window),
        settle_seconds=max(0.0, settled - ended),
        cut=cut,
        processes=ran_in,
        bulk_rate=bulk_rate,
        bulk_wal=(filled.wal_bytes - before.wal_bytes) / jobs,
        run_wal=(after.wal_bytes - filled.wal_bytes) / len(stamps),
        store_cpu=_micros(at_opening, at_end, len(window)),
        client_cpu=clients / len(window) * 1e6,
        transactions=(after.transactions - filled.transactions) / len(stamps),
    )


def _micros(before: Account, after: Account, jobs: int) -> float:
    return (after.cpu - before.cpu) / jobs * 1e6


def _wait_for_the_window(bench: Bench, workers: list[Program], jobs: int, processes: int) -> tuple[float, Account, float]:
    """Until a tenth has started and every process has started one, or so many have that there is no waiting any longer."""
    give_up = time.monotonic() + _FIRST_SECONDS
    while True:
        count = bench.count()
        if count >= jobs / 10 and (count > 0.6 * jobs or len(bench.pids()) >= processes):
            break
        _check(workers)
        if time.monotonic() > give_up:
            raise Failed(f"{count} of {jobs} jobs had started {_FIRST_SECONDS:g} s after the workers")
        time.sleep(0.01)
    clients = cpu_seconds(worker.pid for worker in workers)
    return time.time(), bench.store.account(), clients


def _wait_for_the_end(bench: Bench, workers: list[Program], jobs: int) -> bool:
    give_up = time.monotonic() + CAP_SECONDS
    while bench.count() < jobs:
        _check(workers)
        if time.monotonic() > give_up:
            return True
        time.sleep(0.01)
    return False


def _check(workers: list[Program]) -> None:
    for worker in workers:
        if worker.ended:
            raise Failed(f"a worker ended by itself: {worker.last_words()}")


@dataclass(frozen=True, slots=True)
class Paced:
    """What jobs at a steady rate had to wait from the call that enqueued them to their first line, and what they took."""

    rate: float
    sent_rate: float
    jobs: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    last_ms: float
    worker_cpu: float
    store_cpu: float
    producer_cpu: float

    def told(self) -> dict[str, Any]:
        return asdict(self)


def paced(bench: Bench, rate: float, seconds: float) -> Paced:
    """At `rate` jobs a second, with one worker process that is up and idle. The first half second is not counted."""
    workers = bench.work()
    bench.bulk("nothing", 1)
    give_up = time.monotonic() + _FIRST_SECONDS
    while bench.count() < 1:
        _check(workers)
        if time.monotonic() > give_up:
            raise Failed(f"no job had started {_FIRST_SECONDS:g} s after the worker")
        time.sleep(0.01)
    time.sleep(1.0)
    store, work = bench.store.account(), cpu_seconds([workers[0].pid])
    producer = cpu_seconds([bench.driver.pid])
    answer = bench.driver.ask({"do": "paced", "kind": "nothing", "rate": rate, "seconds": seconds}, 3 * seconds + 20)
    jobs = int(answer["jobs"])
    give_up = time.monotonic() + _SETTLE_SECONDS
    while bench.count() < jobs + 1 and time.monotonic() < give_up:
        time.sleep(0.02)
    time.sleep(0.2)  # completions that are still on their way belong to the CPU of these jobs
    after, worked, produced = bench.store.account(), cpu_seconds([workers[0].pid]), cpu_seconds([bench.driver.pid])
    stamps = bench.stamps()[1:]
    if len(stamps) < jobs:
        raise Failed(f"{len(stamps)} of {jobs} jobs had started {_SETTLE_SECONDS:g} s after the last was sent")
    first = min(stamp.sent for stamp in stamps)
    waits = [(stamp.started - stamp.sent) * 1000 for stamp in stamps if stamp.sent - first > _WARM_SECONDS]
    late = [(stamp.started - stamp.sent) * 1000 for stamp in stamps if stamp.sent - first > seconds - 1]
    ordered = sorted(waits)
    return Paced(
        rate=rate,
        sent_rate=jobs / float(answer["seconds"]),
        jobs=len(waits),
        p50_ms=statistics.median(ordered),
        p99_ms=ordered[int(len(ordered) * 0.99)],
        worst_ms=ordered[-1],
        last_ms=statistics.median(late or waits),
        worker_cpu=(worked - work) / jobs * 1e6,
        store_cpu=_micros(store, after, jobs),
        producer_cpu=(produced - producer) / jobs * 1e6,
    )


def single_rate(bench: Bench, seconds: float) -> float:
    """Jobs a second that one client enqueues one after the other, each waiting for its answer."""
    answer = bench.driver.ask({"do": "single", "kind": "nothing", "seconds": seconds}, seconds + 10)
    return int(answer["jobs"]) / float(answer["seconds"])


def bare_burn(bench: Bench, jobs: int, processes: int) -> float:
    """Jobs a second of the same computing without any queue, in so many processes at once."""
    words = [*install.command(bench.system), "burn", str(jobs)]
    programs = [bench.start(words, number) for number in range(processes)]
    give_up = time.monotonic() + 60
    while not all(program.ended for program in programs):
        if time.monotonic() > give_up:
            raise Failed("the bare loop did not end")
        time.sleep(0.01)
    stamps = bench.stamps()
    by_process = [[stamp.started for stamp in stamps if stamp.pid == pid] for pid in {stamp.pid for stamp in stamps}]
    # While all of them are at it: from the last one's first job to the first one's last.
    begun, ended = max(min(times) for times in by_process), min(max(times) for times in by_process)
    return sum(begun < stamp.started <= ended for stamp in stamps) / (ended - begun)
