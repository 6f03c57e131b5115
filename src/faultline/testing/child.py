"""Run due jobs in a forked process that may be killed at any moment, and learn how far it came.

Forked, so that tasks defined inside a test work too. The application connects anew after a fork, and the child never returns
into the test or cleans up after it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import traceback
import warnings
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from faultline.core.faults import Faults
from faultline.testing.running import adrain

if TYPE_CHECKING:
    from faultline.app.application import Faultline

TIMEOUT_SECONDS = 30.0
_ERROR = "error: "


class Life(NamedTuple):
    """The fault points that a child reached, in order, and whether it was killed at the last one."""

    reached: list[str]
    killed: bool


def run_in_child(app: Faultline, queue: str, faults: Faults, *, timeout: float = TIMEOUT_SECONDS) -> Life:
    """Drain a queue in a child process under these faults."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # A lock that another thread holds now stays locked in the child. A child that hangs is killed below.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _live(app, queue, Reporting(theirs, faults), theirs)
    os.close(theirs)
    try:
        said = _read(ours, timeout)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(ours)
        _, status = os.waitpid(pid, 0)
    if _ERROR in said:
        raise AssertionError(f"the process that ran the job ended by itself:\n{said.partition(_ERROR)[2]}")
    return Life(said.split(), os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


class Reporting(Faults):
    """Reports every point to the parent before anything happens there."""

    wanted = True

    def __init__(self, pipe: int, faults: Faults) -> None:
        self._pipe = pipe
        self._faults = faults

    def reach(self, point: str) -> None:
        os.write(self._pipe, f"{point}\n".encode())
        self._faults.reach(point)


def _live(app: Faultline, queue: str, faults: Faults, pipe: int) -> NoReturn:
    try:
        app.host = replace(app.host, faults=faults)
        asyncio.run(adrain(app, queue, test_database=True))
    except BaseException:  # noqa: BLE001 - no error may get out into a second copy of the test
        os.write(pipe, f"{_ERROR}{traceback.format_exc()}".encode())
    finally:
        os._exit(0)


def _read(pipe: int, timeout: float) -> str:
    """What the child writes until it ends."""
    said = bytearray()
    give_up = monotonic() + timeout
    poll = select.poll()
    poll.register(pipe)
    while True:
        if not poll.poll(max(0.0, give_up - monotonic()) * 1000):
            reached = ", ".join(said.decode().split()) or "nothing"
            raise AssertionError(f"the job did not end in a child process within {timeout:g} s; it had reached: {reached}")
        chunk = os.read(pipe, 65_536)
        if not chunk:
            return said.decode()
        said += chunk
