"""Real worker processes for the figures, as a user would start them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def worker_process(
    dsn: str, *words: str, application: str = "faultline_proof.tasks:app"
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as a process of its own, ended when the block is left."""
    command = [sys.executable, "-m", "faultline", "worker", application, "--quiet", *words]
    process = subprocess.Popen(command, env={**os.environ, "FAULTLINE_DSN": dsn})
    with ended_with(process):
        yield process


@contextlib.contextmanager
def ended_with(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End this process when the block is left, however that happens."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], bool], seconds: float = _PATIENCE_SECONDS, *, pause: float = 0.02) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"it did not happen within {seconds:g} s")
        time.sleep(pause)
