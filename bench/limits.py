"""A limit over all processes, in Faultline and its peers: `python -m bench.limits [--quick] [--only NAME …]`.

Ten jobs of a queue may run at once; each takes 10 ms, and two worker processes have ten slots each. So 1,000 jobs a second
are the most there can be. Each job writes a stamp at its start and one at its end: they say how many ran, and how many at
once. A job writes the second before its system knows that it has ended: no system is charged for what it has yet to note.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import catalog, install
from bench.__main__ import RESULTS, alone, open_stores, result, tell, write
from bench.measure import Bench
from bench.processes import Failed
from bench.report import OURS, Result, better, gaps, measured, measured_on, shown, versions
from bench.workloads import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.catalog import System
    from bench.measure import Stamp

LIMIT, JOB_SECONDS, PROCESSES = 10, 0.01, 2
WORKLOADS = {"limit": "jobs of 10 ms in a queue of which 10 may run at once, prefilled; two worker processes of 10 slots"}
COMPARED = (("jobs/s under a limit of 10", "limit", "rate", "jobs/s", True),)
_FIRST_SECONDS = 20.0
_LEAST_JOBS = 100
#: Jobs a second to expect, to choose how many are enqueued: more than that is cut.
_EXPECTED = {"Faultline": 1_000, "PgQueuer": 1_000, "BullMQ": 1_000, "pg-boss": 500, "DBOS": 200}
# Peers that are known and take no part, each with the reason.
ABSENT = {
    "the other systems of this page": "no adapter has been written for a limit that holds over all their processes",
    "Oban Pro, River Pro, BullMQ Pro": "are sold; of BullMQ the free edition takes part",
}


@dataclass(slots=True)
class LimitRun(Run):
    seconds: float = 6.0

    def _run(self, system: System, workload: str) -> dict[str, Any]:
        with Bench(system, self.stores[system.store], workload, settings={"BENCH_LIMIT": str(LIMIT)}) as bench:
            return limited(bench, int(max(_LEAST_JOBS, self.seconds * _EXPECTED[system.name])), 1.5 * self.seconds)


def limited(bench: Bench, jobs: int, cap_seconds: float) -> dict[str, Any]:
    """Drain them, for so long at the most after the first has started."""
    bench.store.settle()
    bench.bulk("held", jobs)
    workers = bench.work(PROCESSES)
    begun, give_up = None, time.monotonic() + _FIRST_SECONDS
    while bench.count() < 2 * jobs and time.monotonic() < give_up:
        if any(worker.ended for worker in workers):
            raise Failed(f"a worker ended by itself: {' '.join(worker.last_words() for worker in workers)}")
        if begun is None and bench.count():
            begun = time.monotonic()
            give_up = begun + cap_seconds
        time.sleep(0.01)
    cut = bench.count() < 2 * jobs
    stamps = bench.stamps()
    if begun is None or len(stamps) < _LEAST_JOBS:
        raise Failed(f"{len(stamps)} stamps of {jobs} jobs within {_FIRST_SECONDS:g} s")
    return {**judged(stamps), "jobs": jobs, "cut": cut, "processes": len({stamp.pid for stamp in stamps})}


def judged(stamps: Iterable[Stamp]) -> dict[str, Any]:
    """The rate after the first tenth, how many ran at once, and for which part of the time there were too many."""
    ordered = sorted(stamps, key=lambda stamp: (stamp.started, stamp.sent))
    starts = [stamp.started for stamp in ordered if stamp.sent > 0]
    first = len(starts) // 10
    running = most = 0
    over_seconds, last = 0.0, ordered[0].started
    for stamp in ordered:
        if running > LIMIT:
            over_seconds += stamp.started - last
        running, last = running + (1 if stamp.sent > 0 else -1), stamp.started
        most = max(most, running)
    seconds = ordered[-1].started - ordered[0].started
    return {
        "rate": (len(starts) - first - 1) / (starts[-1] - starts[first]),
        "most": most,
        "over_share": over_seconds / seconds,
        "seconds": seconds,
    }


def limit_peers(told: dict[str, Any], pictures: Path) -> str:
    """The section of the page."""
    result_of = Result(told)
    pictures.mkdir(parents=True, exist_ok=True)
    rows = []
    for system in result_of.ranked("limit", "rate"):
        rate, most = result_of.median(system, "limit", "rate"), result_of.spread(system, "limit", "most")
        over = result_of.median(system, "limit", "over_share")
        rows.append(
            [
                system,
                result_of.store(system),
                shown(result_of.spread(system, "limit", "rate")),
                "—" if rate is None else f"{100 * rate * JOB_SECONDS / LIMIT:.0f} %",
                "—" if most is None else f"{most.most:.0f}",
                "—" if over is None else f"{100 * over:.1f} %",
            ]
        )
    head = ["a limit of 10, jobs of 10 ms", "store", "jobs/s", "of 1,000/s", "most at once", "of the time above 10"]
    page = "\n\n".join(
        [measured_on(told), measured(head, rows), better(result_of, COMPARED), gaps(result_of), versions(told)]
    )
    # Sections of one page must not have the same title.
    return page.replace("### Where a peer is better", f"### Where a peer's limit costs less than {OURS}'s").replace(
        "### What was not measured", "### Whose limits were not measured"
    )


def main() -> None:
    words = _words()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    systems = [system for system in catalog.LIMITS if not words.only or system.name in words.only]
    with alone():
        missing = install.install(systems, tell)
        with contextlib.ExitStack() as stack:
            found = open_stores(stack, systems, missing)
            seconds = 2.0 if words.quick else 6.0
            run = LimitRun(found, tell, time.monotonic() + 60 * words.minutes, seconds=seconds)
            able = [system for system in systems if system.name not in missing]
            try:
                run.go(able, list(WORKLOADS), list(WORKLOADS), words.rounds or (1 if words.quick else 3))
            finally:
                told = result(systems, missing, found, run, quick=words.quick)
                write(words.out, {**told, "part": "limit_peers", "workloads": WORKLOADS, "absent": ABSENT})
        shutil.rmtree(catalog.PEERS / "log", ignore_errors=True)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seconds each, one round")
    parser.add_argument("--minutes", type=float, default=15, help="begin nothing after so long")
    parser.add_argument("--rounds", type=int, help="rounds, while there is time")
    names = [system.name for system in catalog.LIMITS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--out", type=Path, help="where to write the result")
    words = parser.parse_args()
    words.out = words.out or RESULTS / ("quick/limit_peers.json" if words.quick else "limit_peers.json")
    return words


if __name__ == "__main__":
    main()
