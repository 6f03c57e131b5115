"""One measurement of one system's flows, in a fresh database, with real worker processes. `systems/flow_common.py` has the
programs; what their stamps say is the same for every system.

Times end where the program goes on, not where the system has noted it: nobody is charged for how it tells of its end.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.processes import Failed, cpu_seconds, wait_for

if TYPE_CHECKING:
    from bench.measure import Bench, Stamp
    from bench.processes import Program

_START_SECONDS, _FLOW_SECONDS, _SETTLE_SECONDS = 30.0, 120.0, 30.0
_SIGNALS_A_SECOND = 20
_BEGUN, _AGAIN = 2, 3  # the last digit of a stamp of `killed`


@dataclass(frozen=True, slots=True)
class Effort:
    steps: int = 100  # of a flow
    step_flows: int = 5
    short_seconds: float = 4.0
    children: int = 1_000
    fans: int = 3
    signals: int = 100
    killed: int = 4  # flows that are running when their worker is killed
    beside_seconds: float = 5.0  # for how long the worker that is left has been up
    patience: float = 150.0  # longer than the longest default of those that take over at all
    claim_seconds: int = 120  # Absurd's default

    @property
    def settings(self) -> dict[str, str]:
        """The environment that tells the adapters."""
        return {
            "BENCH_STEPS": str(self.steps),
            "BENCH_CHILDREN": str(self.children),
            "BENCH_CLAIM_SECONDS": str(self.claim_seconds),
        }


def steps(bench: Bench, effort: Effort) -> dict[str, Any]:
    """Steps of one flow, one after the other, while nothing else runs: from the first step to the last."""
    workers = bench.work()
    rates, seen = [], 0
    for number in range(effort.step_flows + 1):
        bench.bulk("steps", 1)
        _wait(bench, workers, seen + effort.steps)
        _settled(bench, seen + effort.steps)
        stamps, seen = bench.stamps()[seen:], seen + effort.steps
        if len(stamps) != effort.steps:
            raise Failed(f"{len(stamps)} stamps of {effort.steps} steps: some ran again")
        if number:  # the first one warms up
            rates.append((effort.steps - 1) / (stamps[-1].started - stamps[0].started))
    return {"rate": statistics.median(rates), "flows": len(rates)}


def short(bench: Bench, flows: int) -> dict[str, Any]:
    """Flows a second, from the first step of the first one to the last step of the last one: some systems run one flow to
    its end before they begin another, some begin all of them first.
    """
    bench.store.settle()
    bench.bulk("short", flows)
    workers = bench.work()
    _wait(bench, workers, 1)  # their start is not counted
    before, clients = bench.store.account(), cpu_seconds(worker.pid for worker in workers)
    _wait(bench, workers, 2 * flows)
    _settled(bench, 2 * flows)
    after, clients = bench.store.account(), cpu_seconds(worker.pid for worker in workers) - clients
    times = [stamp.started for stamp in bench.stamps()]
    return {
        "rate": flows / (max(times) - min(times)),
        "flows": flows,
        "wal": (after.wal_bytes - before.wal_bytes) / flows,
        "store_cpu": (after.cpu - before.cpu) / flows * 1e6,
        "client_cpu": clients / flows * 1e6,
    }


def fan(bench: Bench, effort: Effort) -> dict[str, Any]:
    """From the call that starts the parent to its next line after the last child."""
    workers = bench.work()
    seconds = []
    for number in range(effort.fans + 1):
        bench.bulk("fan", 1)
        _wait(bench, workers, number + 1)
        _settled(bench, number + 1)
        stamp = bench.stamps()[-1]
        if number:
            seconds.append(stamp.started - stamp.sent)
    return {"seconds": statistics.median(seconds), "children": effort.children, "flows": len(seconds)}


def answer(bench: Bench, effort: Effort) -> dict[str, Any]:
    """From the call that sends a signal to the next line of the flow, which has waited for a second at least."""
    workers = bench.work()
    bench.bulk("answer", effort.signals)
    _wait(bench, workers, effort.signals)
    time.sleep(1.0)
    begun = time.monotonic()
    for number in range(effort.signals):
        time.sleep(max(0.0, begun + number / _SIGNALS_A_SECOND - time.monotonic()))
        bench.driver.ask({"do": "send", "number": number}, _SETTLE_SECONDS)
    _wait(bench, workers, 2 * effort.signals)
    waits = sorted((stamp.started - stamp.sent) * 1000 for stamp in bench.stamps() if stamp.sent)
    return {"p50_ms": statistics.median(waits), "p99_ms": waits[int(len(waits) * 0.99)], "signals": len(waits)}


def killed(bench: Bench, effort: Effort, *, is_restarted: bool) -> dict[str, Any]:
    """From kill -9 of the worker to the step that it was in, in another process: one that is started at once, as a
    supervisor does, or one that has been up beside it.
    """
    (victim,) = bench.work()
    bench.bulk("killed", effort.killed)
    _wait(bench, [victim], 2 * effort.killed)
    if not is_restarted:
        bench.work(first=1)
        time.sleep(effort.beside_seconds)
    held = bench.stamps()
    if {stamp.pid for stamp in held} != {victim.pid}:
        raise Failed("another process began flows of a worker that was alive")
    victim.kill()
    killed_at = time.time()
    if is_restarted:
        bench.work()
    give_up = time.monotonic() + effort.patience
    while len(_again(bench)) < effort.killed and time.monotonic() < give_up:
        time.sleep(0.01)
    waits = [stamp.started - killed_at for stamp in _again(bench)]
    steps_again = len([stamp for stamp in bench.stamps() if stamp.sent % 10 == 1]) - effort.killed
    found = {"flows": effort.killed, "resumed": len(waits), "waited_seconds": effort.patience, "steps_again": steps_again}
    return {**found, "seconds": statistics.median(waits), "worst_seconds": max(waits)} if waits else found


def _again(bench: Bench) -> list[Stamp]:
    return [stamp for stamp in bench.stamps() if stamp.sent % 10 == _AGAIN]


def _wait(bench: Bench, workers: list[Program], stamps: int) -> None:
    """Until so many stamps are there. A worker that ended by itself is told with its last words."""

    def are_there() -> bool:
        for worker in workers:
            if worker.ended:
                raise Failed(f"a worker ended by itself: {worker.last_words()}")
        return bench.count() >= stamps

    wait_for(are_there, _FLOW_SECONDS, f"not {stamps} stamps within {_FLOW_SECONDS:g} s", pause=0.005)


def _settled(bench: Bench, stamps: int) -> None:
    bench.settled(stamps, _SETTLE_SECONDS)
