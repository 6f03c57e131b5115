"""A command at a terminal, with a person who reads and types."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import termios
import time
from typing import TYPE_CHECKING

from tests.cli.commands import FAULTLINE, environment

if TYPE_CHECKING:
    import signal

_PATIENCE_SECONDS = 120.0


class Terminal:
    def __init__(self, *words: str, term: str = "xterm") -> None:
        self._ours, self._its = pty.openpty()
        self.before = termios.tcgetattr(self._its)
        self._process = subprocess.Popen(
            [FAULTLINE, *words],
            stdin=self._its, stdout=self._its, stderr=self._its, env=environment(TERM=term, LINES="40"),
        )  # fmt: skip
        self.seen = ""

    def read_until(self, text: str) -> None:
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < give_up, self.seen
            self.seen += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def answer(self, question: str, text: str) -> None:
        self.read_until(question)
        self.press(f"{text}\n")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(_PATIENCE_SECONDS)

    def ended(self) -> int:
        """Its exit code, once it has ended and all that it printed was seen."""
        code = self.wait()
        os.set_blocking(self._ours, False)
        with contextlib.suppress(OSError):  # nothing is left
            while read := os.read(self._ours, 65536):
                self.seen += read.decode(errors="replace")
        self.close()
        return code

    @property
    def now(self) -> list[object]:
        return termios.tcgetattr(self._its)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._its)
        with contextlib.suppress(OSError):
            os.close(self._ours)
