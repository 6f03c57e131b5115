"""Faultline's flows and its peers': `python -m bench.flows [--quick] [--only NAME …]`, then `python -m bench.report`."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import catalog, install, stores
from bench.__main__ import RESULTS, alone, result, tell, write
from bench.flows.measure import Effort
from bench.flows.workloads import CENTRAL, QUICK_EFFORT, WORKLOADS, FlowRun

if TYPE_CHECKING:
    from bench.stores import Store

# Peers that are known and do not run here, each with the reason.
ABSENT = {
    "Temporal": "its Python package is a client; its servers, those for tests too, are programs that pip does not bring",
    "Hatchet, Inngest, Trigger.dev, Restate": "need a server of their own, which the comparison does not install",
}


def main() -> None:
    words = _words()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    systems = [system for system in catalog.FLOWS if not words.only or system.name in words.only]
    with alone():
        missing = install.install(systems, tell)
        with stores.postgres() as postgres:
            found: dict[str, Store] = {"postgresql": postgres}
            effort = QUICK_EFFORT if words.quick else Effort()
            run = FlowRun(found, tell, time.monotonic() + 60 * words.minutes, effort=effort)
            able = [system for system in systems if system.name not in missing]
            chosen = words.workload or list(CENTRAL if words.quick else WORKLOADS)
            again = [workload for workload in chosen if workload in CENTRAL]
            try:
                run.go(able, chosen, again, words.rounds or (1 if words.quick else 3))
            finally:
                told = result(systems, missing, found, run, quick=words.quick)
                write(words.out, {**told, "part": "flow_peers", "workloads": WORKLOADS, "absent": ABSENT})
        shutil.rmtree(catalog.PEERS / "log", ignore_errors=True)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.flows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, one round, nobody is killed; about two minutes")
    parser.add_argument("--minutes", type=float, default=40, help="begin nothing after so long")
    parser.add_argument("--rounds", type=int, help="rounds of the rates, while there is time")
    names = [system.name for system in catalog.FLOWS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), help="these workloads only")
    parser.add_argument("--out", type=Path, help="where to write the result")
    words = parser.parse_args()
    words.out = words.out or RESULTS / ("quick/flow_peers.json" if words.quick else "flow_peers.json")
    return words


if __name__ == "__main__":
    main()
