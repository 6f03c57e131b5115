"""The worker processes of a soak. Whoever is killed is replaced, whoever is frozen is thawed; at the end all are gone.

Each has a tape of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_REPLACED_AFTER_SECONDS = 0.5
_STOP_SECONDS = 10.0


@dataclass(slots=True)
class Member:
    """One place in the crew, and the process that has it now."""

    number: int
    process: subprocess.Popen[bytes]
    killed: bool = False
    #: What thaws it when its pipe closes, by us or because we have ended.
    thawing: subprocess.Popen[bytes] | None = None
    thaw_at: float | None = None
    replace_at: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def at_work(self) -> bool:
        return self.process.poll() is None and self.thaw_at is None


class Crew:
    def __init__(self, dsn: str, number: int, folder: Path, tapes: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._tapes = tapes
        self._starts = count(1)
        self.members = [Member(number, self._start(number)) for number in range(number)]
        #: Processes that ended though nobody killed them, with their last words.
        self.surprises: list[str] = []

    def tick(self) -> None:
        """Thaw and replace whoever is due."""
        now = time.monotonic()
        for member in self.members:
            if member.thaw_at is not None and now >= member.thaw_at:
                self._thaw(member)
            if member.process.poll() is None:
                continue
            if member.replace_at is None:
                member.replace_at = now + _REPLACED_AFTER_SECONDS
                if not member.killed:
                    self.surprises.append(f"status {member.process.returncode}: {self._last_words(member.number)}")
            elif now >= member.replace_at:
                member.process, member.killed, member.replace_at = self._start(member.number), False, None

    def kill(self, member: Member) -> None:
        member.killed = True
        member.process.kill()
        member.process.wait()

    def freeze(self, member: Member, seconds: float) -> None:
        # Whoever thaws it outlives us: one that stands still sees no pipe close.
        thaw = ["/bin/sh", "-c", 'read -r _; kill -CONT "$0"', str(member.pid)]
        member.thawing = subprocess.Popen(thaw, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        member.process.send_signal(signal.SIGSTOP)
        member.thaw_at = time.monotonic() + seconds

    @property
    def frozen(self) -> int:
        return sum(member.thaw_at is not None for member in self.members)

    def stop(self) -> None:
        """Everybody goes home: politely, then not."""
        for member in self.members:
            self._thaw(member)
            member.process.terminate()
        give_up = time.monotonic() + _STOP_SECONDS
        for member in self.members:
            try:
                member.process.wait(max(0.1, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(member)
            if member.process.stdin is not None:
                member.process.stdin.close()

    def _thaw(self, member: Member) -> None:
        thawing, member.thawing, member.thaw_at = member.thawing, None, None
        if thawing is not None:
            thawing.communicate()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        tape = self._tapes / f"worker-{number}.{next(self._starts)}"
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "faultline_proof.soak.tasks", self._dsn, str(tape)],
                stdin=subprocess.PIPE,  # closed when we end, in whatever way: they end too
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            )

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    def _last_words(self, number: int) -> str:
        lines = self._log(number).read_text(errors="replace").strip().splitlines()
        return " ".join(line.strip() for line in lines[-2:])[-500:] or "no last words"
