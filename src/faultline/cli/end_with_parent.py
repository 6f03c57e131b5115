"""Run a module as a program that ends with the process that started it.

    python -m faultline.cli.end_with_parent MODULE WORDS...

Standard input is the leash: a pipe from the parent, which the kernel closes however the parent dies.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

_GRACE_SECONDS = 15.0


def _heed(leash: int) -> None:
    """Wait for the pipe to close, then ask this process to stop, and kill it if it does not."""
    while os.read(leash, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(143)


if __name__ == "__main__":
    held = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing else may read from it
    threading.Thread(target=_heed, args=(held,), daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
