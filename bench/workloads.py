"""What is measured, how much of it, and in which order: in turns over the systems, so that a noisy minute hits all alike."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.measure import Bench, bare_burn, drain, paced, single_rate
from bench.processes import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.catalog import System
    from bench.stores import Store

AIM_SECONDS, LEAST_SECONDS = 2.5, 1.2
IDLE_RATE, IDLE_SECONDS = 100, 4.0
STEADY_RATE, STEADY_SECONDS = 500, 8.0
SINGLE_SECONDS = 1.0
CPU_JOBS, CPU_MILLISECONDS, CPU_PROCESSES = 600, 5.0, 2
MOST_JOBS, MOST_LARGE_JOBS, LEAST_JOBS = 150_000, 2_500, 200

WORKLOADS = {
    "drain_1": "no-op jobs, prefilled, one worker process",
    "drain_2": "no-op jobs, prefilled, two worker processes",
    "idle": f"{IDLE_RATE} jobs a second on an idle system, one worker process; then single enqueues",
    "io": "jobs that wait 10 ms, prefilled, one worker process, 500 at a time, or as many as are best for the system",
    "steady": f"{STEADY_RATE} jobs a second for {STEADY_SECONDS:g} s, one worker process",
    "cpu": f"jobs that compute for about {CPU_MILLISECONDS:g} ms without giving way, prefilled, two worker processes",
    "args_1k": "no-op jobs with 1 KB of arguments, prefilled, one worker process",
    "args_100k": "no-op jobs with 100 KB of arguments, prefilled, one worker process",
}
CENTRAL = ("drain_1", "drain_2", "idle", "io", "steady")
QUICK = ("drain_1", "idle", "steady")


@dataclass(slots=True)
class Run:
    """All measurements of a run, as they come in."""

    stores: dict[str, Store]
    tell: Callable[[str], None]
    deadline: float
    found: list[dict[str, Any]] = field(default_factory=list)
    _rates: dict[tuple[str, str], float] = field(default_factory=dict)
    _failed: set[tuple[str, str]] = field(default_factory=set)
    _hashes: dict[bool, int] = field(default_factory=dict)

    def go(self, systems: Sequence[System], workloads: Sequence[str], again: Sequence[str], rounds: int) -> None:
        """One round of every workload, then further rounds of the central ones while there is time."""
        for number, workload, system in _order(systems, workloads, again, rounds):
            if (system.name, workload) in self._failed:
                continue
            if time.monotonic() > self.deadline:
                if number == 0:
                    self._note(system, workload, number, {"error": "not measured: the time was up"})
                continue
            self._measure(system, workload, number)

    def _measure(self, system: System, workload: str, number: int) -> None:
        begun = time.monotonic()
        try:
            figures = self._run(system, workload)
        except Failed as error:
            figures = {"error": str(error)}
            self._failed.add((system.name, workload))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must still be measured
            figures = {"error": f"{type(error).__name__}: {error}"[:400]}
            self._failed.add((system.name, workload))
        self._note(system, workload, number, {**figures, "took_seconds": round(time.monotonic() - begun, 1)})

    def _note(self, system: System, workload: str, number: int, figures: dict[str, Any]) -> None:
        self.found.append({"system": system.name, "workload": workload, "round": number, **figures})
        self.tell(f"round {number + 1}  {workload:9}  {system.name:16}  {_short(figures)}")

    def _run(self, system: System, workload: str) -> dict[str, Any]:
        if workload == "idle":
            with self._bench(system, "latency") as bench:
                found = paced(bench, IDLE_RATE, IDLE_SECONDS).told()
                return {**found, "single_rate": single_rate(bench, SINGLE_SECONDS)}
        if workload == "steady":
            with self._bench(system, "latency") as bench:
                return paced(bench, STEADY_RATE, STEADY_SECONDS).told()
        if workload == "cpu":
            return self._cpu(system)
        found = self._drain(system, workload)
        if found["window_seconds"] < LEAST_SECONDS and not found["cut"]:
            found = self._drain(system, workload)  # now its rate is known
        return found

    def _drain(self, system: System, workload: str) -> dict[str, Any]:
        kind, mode = ("wait", "io") if workload == "io" else ("nothing", "drain")
        size = {"args_1k": 1_000, "args_100k": 100_000}.get(workload, 0)
        processes = 2 if workload == "drain_2" else 1
        with self._bench(system, mode) as bench:
            found = drain(bench, kind, self._jobs(system, workload), processes, size)
        self._rates[system.name, workload] = found.rate
        return found.told()

    def _jobs(self, system: System, workload: str) -> int:
        """So many that it takes about the time we aim at: by its last rate, or by what is expected of it."""
        hints = {"io": system.io, "drain_2": 1.5 * system.drain, "args_100k": min(900.0, system.drain)}
        known = self._rates.get((system.name, workload)) or hints.get(workload)
        rate = known or self._rates.get((system.name, "drain_1")) or system.drain
        most = MOST_LARGE_JOBS if workload == "args_100k" else MOST_JOBS
        return int(max(LEAST_JOBS, min(most, rate * AIM_SECONDS / 0.9)))

    def _cpu(self, system: System) -> dict[str, Any]:
        """The share of the cores that the jobs themselves got: the rate against the same loop without a queue."""
        hashes = self._hashes_of_a_job(system)
        before = self._bare(system, hashes)
        with self._bench(system, "cpu", hashes) as bench:
            found = drain(bench, "block", CPU_JOBS, CPU_PROCESSES)
        # Before and after: the machine may have become slower or faster.
        ideal = (before + self._bare(system, hashes)) / 2
        return {**found.told(), "ideal_rate": ideal, "efficiency": found.rate / ideal}

    def _hashes_of_a_job(self, system: System) -> int:
        """How many hashes take the CPU that a job should, in the language of the system."""
        if system.node not in self._hashes:
            guess = 5_000
            # By CPU, not by the clock: on a busy machine the jobs would become smaller. The difference leaves out the start.
            seconds = self._burned(system, guess, 300) - self._burned(system, guess, 100)
            self._hashes[system.node] = int(guess * CPU_MILLISECONDS / 1000 / (seconds / 200))
        return self._hashes[system.node]

    def _bare(self, system: System, hashes: int) -> float:
        """The same computing in as many processes, without a queue."""
        with self._bench(system, "cpu", hashes) as bench:
            return bare_burn(bench, 200, CPU_PROCESSES)

    def _burned(self, system: System, hashes: int, jobs: int) -> float:
        with self._bench(system, "cpu", hashes) as bench:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            bare_burn(bench, jobs, 1)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _bench(self, system: System, mode: str, hashes: int = 0) -> Bench:
        return Bench(system, self.stores[system.store], mode, hashes)


def _order(
    systems: Sequence[System], workloads: Sequence[str], again: Sequence[str], rounds: int
) -> Iterator[tuple[int, str, System]]:
    for number in range(rounds):
        for workload in workloads if number == 0 else again:
            turn = number % len(systems)
            for system in (*systems[turn:], *systems[:turn]):  # nobody is always first
                yield number, workload, system


def _short(figures: dict[str, Any]) -> str:
    if "error" in figures:
        return f"— {figures['error']}"
    if "p50_ms" in figures:
        return f"{figures['p50_ms']:8.2f} ms p50  {figures['p99_ms']:8.2f} ms p99"
    if "window_seconds" not in figures:
        known = {name: value for name, value in figures.items() if name in ("rate", "seconds", "resumed", "worst_seconds")}
        return "  ".join(f"{name.replace('_', ' ')} {value:,.2f}" for name, value in known.items())
    share = f"  {100 * figures['efficiency']:.0f} % of ideal" if "efficiency" in figures else ""
    return f"{figures['rate']:8.0f} jobs/s  in {figures['window_seconds']:.1f} s{share}"
