"""What is measured of flows, in turns over the systems: the rates in several rounds, the deaths in one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.flows import measure
from bench.flows.measure import Effort
from bench.measure import Bench
from bench.workloads import Run

if TYPE_CHECKING:
    from bench.catalog import System

WORKLOADS = {
    "steps": "one flow of 100 steps, nothing else runs; one worker process",
    "short": "flows of three steps and a durable sleep of 10 ms, prefilled; one worker process",
    "fan": "a flow with 1,000 children that do nothing, and their results; one worker process",
    "answer": "20 signals a second to flows that wait; one worker process",
    "killed": "kill -9 of the only worker process, which is started again at once",
    "beside": "kill -9 of one of two worker processes, which is not started again",
}
CENTRAL = ("steps", "short", "fan", "answer")
QUICK_EFFORT = Effort(step_flows=2, short_seconds=1.5, children=200, fans=1, signals=20, killed=2)

#: Flows a second to expect of one process, to choose their first number.
_EXPECTED = {"Faultline": 1_000.0, "DBOS": 100.0, "Absurd": 100.0}
_LEAST_FLOWS, _MOST_FLOWS = 60, 20_000


@dataclass(slots=True)
class FlowRun(Run):
    effort: Effort = field(default_factory=Effort)

    def _run(self, system: System, workload: str) -> dict[str, Any]:
        with Bench(system, self.stores[system.store], workload, settings=self.effort.settings) as bench:
            if workload == "short":
                found = measure.short(bench, self._flows(system))
                self._rates[system.name, workload] = found["rate"]
                return found
            if workload in ("killed", "beside"):
                return measure.killed(bench, self.effort, is_restarted=workload == "killed")
            return {"steps": measure.steps, "fan": measure.fan, "answer": measure.answer}[workload](bench, self.effort)

    def _flows(self, system: System) -> int:
        rate = self._rates.get((system.name, "short")) or _EXPECTED[system.name]
        return int(max(_LEAST_FLOWS, min(_MOST_FLOWS, rate * self.effort.short_seconds / 0.9)))
