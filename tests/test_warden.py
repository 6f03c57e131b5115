"""What a test run leaves to others: nothing, however it was started and however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.embedded.postmaster import command_of
from tests.conftest import REPOSITORY
from tests.embedded.programs import eventually

# A run whose test has frozen a process in a session of its own, started one that hides its environment, as sessions of
# PostgreSQL do, and frozen a session of the server that runs share.
RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from tests import warden
warden.watch_over_this_process(Path(sys.argv[1]))
def start(*command):
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
parent = start("sh", "-c", "env -i sleep 600 & echo $!; wait")
frozen = start("sleep", "600")
shared = start(sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1] + "/default")
for process in (frozen, shared):
    process.send_signal(signal.SIGSTOP)
print(parent.pid, parent.stdout.readline().strip(), frozen.pid, shared.pid, flush=True)
sys.stdin.read()
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux tells whose processes are whose")
def test_nothing_outlives_a_run_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        *own, shared = map(int, run.stdout.readline().split())
        assert eventually(lambda: state_of(own[-1]) == state_of(shared) == "T", 60)

        run.kill()

        try:
            assert eventually(lambda: not any(map(command_of, own)), 60)
            assert eventually(lambda: state_of(shared) in "RSD", 60)
        finally:
            os.kill(shared, signal.SIGKILL)


def test_a_run_in_the_background_can_interrupt_what_it_starts() -> None:
    """There the shell has SIGINT ignored, and every process inherits that."""
    shown = "import tests.conftest, subprocess, signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    command = ["sh", "-c", 'trap \'\' INT; exec "$0" -c "$1"', sys.executable, shown]

    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "False"
