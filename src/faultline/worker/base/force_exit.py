"""End this process while something in it goes on: a thread, or a task that swallows its cancellation."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from faultline.core import events

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long leftover threads and tasks may delay the end.
CLOSE_SECONDS = 5.0


def end(code: int) -> NoReturn:
    """End this process now, whatever runs in it."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_after(seconds: float, code: int, leave: Callable[[], None] = lambda: None) -> threading.Event:
    """End this process after so many seconds, unless the event is set before."""
    over = threading.Event()

    def watch() -> None:
        if not over.wait(seconds):
            events.emit("process_ended", reason="threads or tasks were left that did not end")
            leave()
            end(code)

    threading.Thread(target=watch, name="faultline-end", daemon=True).start()
    return over
