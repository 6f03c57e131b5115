"""How much of everything is done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int = 3
    #: For how long real workers run jobs that wait, in each round.
    seconds: float = 8.0
    groups: int = 10_000
    #: Jobs that do nothing, through real workers.
    noops: int = 60_000
    #: Jobs by bare calls, in each round.
    calls: int = 20_000
    hot: int = 1_000_000
    cold_groups: int = 1_000
    #: Jobs while somebody holds a snapshot.
    held: int = 60_000
    #: Jobs that wait while permits are counted.
    open_jobs: int = 100_000
    running: int = 1_000
    schedules: int = 1_000
    idle_seconds: float = 20.0
    workers: int = 16


QUICK = Effort(
    rounds=1, seconds=3.0, groups=2_000, noops=10_000, calls=4_000, hot=50_000, cold_groups=200, held=10_000,
    open_jobs=10_000, running=200, schedules=200, idle_seconds=5.0, workers=8,
)  # fmt: skip
