"""A running count of simulated histories, shown while they are played."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.world.world import Outcome

_BAR = 30


class Tally:
    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._begun = time.monotonic()
        self._played = self._jobs = self._refused = 0
        self._faults: Counter[str] = Counter()
        self._shown = sys.stderr.isatty() and seeds > 1
        self.broken: list[int] = []

    def add(self, outcome: Outcome) -> None:
        self._played += 1
        self._jobs += outcome.jobs
        self._refused += outcome.refused
        self._faults.update(outcome.faults)
        if outcome.broken:
            self.broken.append(outcome.seed)
        if self._shown:
            done = _BAR * self._played // self._seeds
            bar = f"[{'#' * done}{'.' * (_BAR - done)}] {self._played:,} of {self._seeds:,} seeds, {len(self.broken)} broken"
            end = "\n" if self._played == self._seeds else ""
            print(f"\r{bar}", end=end, file=sys.stderr, flush=True)

    def summary(self) -> str:
        faults = ", ".join(f"{times:,} x {fault}" for fault, times in sorted(self._faults.items()))
        seconds = time.monotonic() - self._begun
        verdict = f"broken: {', '.join(map(str, self.broken))} (replay one with --seed N)" if self.broken else "all sound"
        return (
            f"{self._played:,} of {self._seeds:,} histories in {seconds:.0f} s, {verdict}\n"
            f"{self._jobs:,} jobs acknowledged, {self._refused:,} stale writes refused; faults that took effect: {faults}"
        )
