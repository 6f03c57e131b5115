"""Play seeds in a process of its own, one line of JSON for each.

Run as `python -m faultline_proof.world DSN keep|drop FAULTS SEED...`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict

from faultline_proof.world import world


def main() -> None:
    dsn, keep, faults, *seeds = sys.argv[1:]
    gc.disable()  # dead processes must not be cleaned up, and a run is short
    stage = world.Stage(dsn, faults.split(","))
    for seed in seeds:
        outcome = stage.play(int(seed), keep_history=keep == "keep")
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        sys.stdout.flush()
    # No orderly end: whatever a dead host has left behind stays untouched.
    os._exit(0)


main()
