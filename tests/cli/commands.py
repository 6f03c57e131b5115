"""Run the command line as people do: as a process, with its output and exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAULTLINE = Path(sys.executable).with_name("faultline")


def environment(**more: str) -> dict[str, str]:
    """What surrounds a command: nothing that names a database or a look."""
    unwanted = ("FAULTLINE_DSN", "DATABASE_URL", "NO_COLOR", "FORCE_COLOR")
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**clean, "COLUMNS": "120", **more}


def faultline(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FAULTLINE, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(**environ),
    )
