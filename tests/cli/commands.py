"""Run the command line as people do: as a process, with its output and exit code."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

FAULTLINE = Path(sys.executable).with_name("faultline")
_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 180.0


def environment(**more: str) -> dict[str, str]:
    """What surrounds a command: nothing that names a database or a look."""
    unwanted = ("FAULTLINE_DSN", "DATABASE_URL", "NO_COLOR", "FORCE_COLOR")
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**clean, "COLUMNS": "120", **more}


def faultline(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A process of its own for each command, forked: see `tests/cli/forks.py`."""
    forks = _forks()
    assert forks.stdin is not None
    assert forks.stdout is not None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        asked = {"words": words, "environ": environment(**environ), "out": out.name, "err": err.name}
        print(json.dumps(asked), file=forks.stdin, flush=True)
        if not select.select([forks.stdout], [], [], _PATIENCE_SECONDS)[0]:
            os.killpg(forks.pid, signal.SIGKILL)
            _forks.cache_clear()
            raise subprocess.TimeoutExpired(words, _PATIENCE_SECONDS, out.read(), err.read())
        code = int(forks.stdout.readline())
        return subprocess.CompletedProcess(words, code, out.read().decode(), err.read().decode())


@cache
def _forks() -> subprocess.Popen[str]:
    """It ends when its standard input does, and so with us."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cli.forks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=environment(),
        start_new_session=True,
    )
