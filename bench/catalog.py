"""Who takes part: where each system keeps its jobs, the file that adapts it, and about how fast it is, to size the runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
PEERS = HERE / ".peers"
SYSTEMS = HERE / "systems"
ENVIRONMENTS = HERE / "environments"


@dataclass(frozen=True, slots=True)
class System:
    name: str
    key: str  # of its adapter and environment
    package: str
    store: str  # postgresql or redis
    drain: float  # jobs/s to expect of one process, to choose the first number of jobs; later rounds know better
    io: float  # the same for jobs that wait 10 ms
    node: bool = False
    prefix: str = "use"  # of its adapter: for jobs, flows or limits

    @property
    def adapter(self) -> Path:
        return SYSTEMS / f"{self.prefix}_{self.key}.{'mjs' if self.node else 'py'}"

    @property
    def settings(self) -> list[dict[str, str]]:
        """What its adapter sets and where that is documented: the list under `Settings:` on top of the file."""
        text = self.adapter.read_text().partition("Settings:")[2]
        block = re.split(r"\n\s*(?:\n|\"\"\"|\*/)", text, maxsplit=1)[0]
        entries = (line.strip(" *-\n") for line in re.split(r"\n[ *]*- ", "\n" + block.strip()) if line.strip(" *\n"))
        joined = (re.sub(r"\s*\n[ *]*", " ", entry) for entry in entries)
        return [
            {"setting": what.strip(), "source": where.strip()} for what, _, where in (e.partition(" | ") for e in joined)
        ]


ALL = (
    System("Faultline", "faultline", "faultline-queue", "postgresql", 20_000, 15_000),
    System("graphile-worker", "graphile_worker", "graphile-worker", "postgresql", 12_000, 10_000, node=True),
    System("PgQueuer", "pgqueuer", "pgqueuer", "postgresql", 8_000, 6_000),
    System("pg-boss", "pg_boss", "pg-boss", "postgresql", 5_000, 4_000, node=True),
    System("Awa", "awa", "awa-pg", "postgresql", 3_000, 3_000),
    System("Chancy", "chancy", "chancy", "postgresql", 700, 700),
    System("Procrastinate", "procrastinate", "procrastinate", "postgresql", 350, 350),
    System("Absurd", "absurd", "absurd-sdk", "postgresql", 350, 350),
    System("DBOS", "dbos", "dbos", "postgresql", 200, 200),
    System("BullMQ", "bullmq", "bullmq", "redis", 7_000, 6_000, node=True),
    System("SAQ", "saq", "saq", "redis", 1_200, 1_200),
    System("Taskiq", "taskiq", "taskiq", "redis", 1_500, 1_500),
    System("Dramatiq", "dramatiq", "dramatiq", "redis", 1_500, 1_500),
    System("arq", "arq", "arq", "redis", 800, 800),
    System("Huey", "huey", "huey", "redis", 2_000, 1_500),
    System("Celery", "celery", "celery", "redis", 800, 800),
    System("RQ", "rq", "rq", "redis", 400, 90),
)
#: Those that have flows, with the adapters of these.
FLOWS = tuple(replace(system, prefix="flow") for system in ALL if system.name in ("Faultline", "Absurd", "DBOS"))
#: Those that limit how many jobs of a queue run at once over all processes.
LIMITS = tuple(
    replace(system, prefix="limit")
    for system in ALL
    if system.name in ("Faultline", "PgQueuer", "pg-boss", "DBOS", "BullMQ")
)
QUICK = ("Faultline", "graphile-worker", "PgQueuer", "Procrastinate")

# Peers that are known and do not run here, each with the reason.
ABSENT = {
    "Oban for Python": "pip finds no distribution named oban or oban-py",
    "River": "written in Go; the comparison installs from PyPI and npm only",
    "Oban (Elixir)": "written in Elixir; the comparison installs from PyPI and npm only",
    "Hatchet, Temporal": "need a server of their own, which the comparison does not install",
}
