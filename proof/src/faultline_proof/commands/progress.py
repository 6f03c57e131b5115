"""How far a long command has come: one line that is written over on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from faultline_proof.soak import Glance

_SECONDS_ON_TERMINAL, _SECONDS_ELSEWHERE = 0.2, 10.0
_START_OF_LINE, _REST_OF_LINE = "\r", "\x1b[K"


class Progress(contextlib.AbstractContextManager["Progress"]):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._every = _SECONDS_ON_TERMINAL if self._live else _SECONDS_ELSEWHERE
        self._due = 0.0

    def show(self, glance: Glance) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._every
        line = _line(glance)
        self._stream.write(f"{_START_OF_LINE}{line}{_REST_OF_LINE}" if self._live else f"{line}\n")
        self._stream.flush()

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._stream.write(_START_OF_LINE + _REST_OF_LINE)
            self._stream.flush()


def _line(glance: Glance) -> str:
    faults = ", ".join(f"{kind} {times}" for kind, times in glance.faults.items())
    return (
        f"{_clock(glance.seconds)} of {_clock(glance.of_seconds)}  acknowledged {glance.acknowledged:,}  "
        f"unfinished {glance.unfinished:,}  faults: {faults or 'none yet'}"
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
