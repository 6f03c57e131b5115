"""Play many seeds in several processes. Each has a database of its own and one thread: a seed does not notice the others.

`played_again` holds this to account: the same seeds, in other company.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from faultline.store import scratch
from faultline_proof.world import world
from faultline_proof.world.storm import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What dead hosts leave behind is kept until their process ends, so a process does not live long.
_SEEDS_PER_PROCESS = 100


def simulate(
    server_dsn: str,
    seeds: Sequence[int],
    *,
    processes: int = 2,
    mutant: str = "",
    keep_history: bool = False,
    faults: Sequence[str] = DEFAULT,
) -> Iterator[world.Outcome]:
    """Give the outcomes as they come. `faults`: those kinds only. Left early, or by Ctrl-C, it stops what it started."""
    todo: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    outcomes: queue.SimpleQueue[world.Outcome | Exception | None] = queue.SimpleQueue()
    size = max(1, min(_SEEDS_PER_PROCESS, -(-len(seeds) // processes)))
    for start in range(0, len(seeds), size):
        todo.put(list(seeds[start : start + size]))
    players = [_Player(server_dsn, todo, outcomes, mutant, keep_history, faults) for _ in range(min(processes, len(seeds)))]
    with contextlib.ExitStack() as stack:
        for player in players:
            stack.callback(player.stop)
            player.start()
        playing = len(players)
        while playing:
            outcome = outcomes.get()
            if outcome is None:
                playing -= 1
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                yield outcome


def played_again(
    server_dsn: str, before: Sequence[world.Outcome], *, processes: int = 2, faults: Sequence[str] = DEFAULT
) -> Iterator[str]:
    """Play seeds whose histories are known again, in the opposite order and on one process more, and tell what differs."""
    known = {outcome.seed: outcome for outcome in before}
    again = sorted(known, reverse=True)
    for outcome in simulate(server_dsn, again, processes=processes + 1, keep_history=True, faults=faults):
        earlier = known[outcome.seed]
        if earlier.digest != outcome.digest:
            lines = zip([*earlier.history, "the end"], [*outcome.history, "the end"], strict=False)
            first, second = next(
                ((a, b) for a, b in lines if a != b), ("what the database held in the end", "something else")
            )
            yield f"seed {outcome.seed} had two histories; first:\n  {first}\nand then:\n  {second}"


class _Player(threading.Thread):
    """One database, and one child process after the other in it."""

    def __init__(
        self,
        server_dsn: str,
        todo: queue.SimpleQueue[list[int]],
        outcomes: queue.SimpleQueue[world.Outcome | Exception | None],
        mutant: str,
        keep_history: bool,  # noqa: FBT001
        faults: Sequence[str],
    ) -> None:
        super().__init__(name="faultline-world", daemon=True)
        self._server_dsn = server_dsn
        self._todo = todo
        self._outcomes = outcomes
        self._mutant = mutant
        self._keep = "keep" if keep_history else "drop"
        self._faults = ",".join(faults)
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        child = self._child
        if child is not None:
            child.kill()
        self.join()

    def run(self) -> None:
        try:
            with scratch.database(self._server_dsn) as dsn:
                world.prepare(dsn, self._mutant)
                while not self._stopping:
                    try:
                        seeds = self._todo.get_nowait()
                    except queue.Empty:
                        break
                    self._play(dsn, seeds)
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the outcomes
            self._outcomes.put(error)
        finally:
            self._outcomes.put(None)

    def _play(self, dsn: str, seeds: list[int]) -> None:
        # The order of sets of text must not differ from one process to the next.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "faultline_proof.world", dsn, self._keep, self._faults, *map(str, seeds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
            self._child = child
            assert child.stdout is not None  # noqa: S101 - it is a pipe
            for line in child.stdout:
                self._outcomes.put(world.Outcome(**json.loads(line)))
            if child.wait() != 0 and not self._stopping:
                raise RuntimeError(
                    f"the process that played the seeds {seeds[0]} to {seeds[-1]} ended with {child.returncode}"
                )
