"""The worker's end of its companion process: starts it, restarts it if it dies, and sees what it did.

A worker without a companion (it cannot be started, or the host has none) works alone: while a task holds the interpreter its
leases expire, and while the loop is blocked it keeps its jobs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from faultline.core import events
from faultline.core.dsn import latest
from faultline.core.forks import keep_from_forks
from faultline.core.pause import Pause
from faultline.worker.companion.memory import Shared
from faultline.worker.companion.process import Settings

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from faultline.app.tasks import Task
    from faultline.worker.lease.held_lease import HeldLease

_PAUSE_MIN, _PAUSE_MAX = 1.0, 60.0
_EXIT_SECONDS = 2.0


class Standby:
    """`health`: a listening socket on which the companion answers for this worker. `memory`: a file that the parent has made
    to look at this worker. Raises `OSError` if there is no room for the shared memory.
    """

    def __init__(  # noqa: PLR0913 - all that the companion must know
        self,
        dsn: str,
        worker: str,
        *,
        capacity: int,
        grace_seconds: float,
        loop_timeout_seconds: float,
        owns_process: bool,
        signals: int | None,
        health: socket.socket | None,
        memory: int | None,
        monotonic: Callable[[], float],
        tasks: Mapping[str, Task[..., Any]],
    ) -> None:
        self.shared = Shared.create(capacity, memory)
        self.shared.set_loop_timeout(loop_timeout_seconds)
        self.shared.timeout_of = lambda name: tasks[name].timeout_seconds if name in tasks else None
        self.shared.loop_ticked(monotonic())
        self.shared.watch_ticked(monotonic())
        self._health = health
        self._monotonic = monotonic
        self._settings = Settings(
            dsn=latest(dsn),
            worker=worker,
            parent=os.getpid(),
            memory=self.shared.fd,
            capacity=capacity,
            signals=signals,
            health=None if health is None else health.fileno(),
            grace_seconds=grace_seconds,
            owns_process=owns_process,
            logs=_log_form(),
        )
        self._dsn = dsn
        #: For each feed: how often the companion had released jobs when its claim was sent.
        self._epochs: dict[int, int] = {}
        self._seen = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = Pause(_PAUSE_MIN, _PAUSE_MAX)
        self._start_at = 0.0

    def start(self) -> None:
        settings = self._settings = replace(self._settings, dsn=latest(self._dsn))
        fds = [fd for fd in (settings.memory, settings.signals, settings.health) if fd is not None]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-P", "-m", "faultline.worker.companion.process"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=fds, env=environ
            )
            # Through the pipe: other users could read the password in the arguments.
            assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
            keep_from_forks(self._process.stdin)
            self._process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._process = None
            again_in = self._put_off(self._monotonic())
            events.emit("companion_failed", worker=settings.worker, error=str(error), again_in=again_in)

    def tick(self) -> None:
        """Restart it if it died. Called a few times a second."""
        process, now = self._process, self._monotonic()
        if process is not None and process.poll() is not None:
            self._process = None
            if now > self._start_at + _PAUSE_MAX:
                self._pause.reset()  # it lived for long
            status, worker = process.returncode, self._settings.worker
            events.emit("companion_died", worker=worker, status=status, again_in=self._put_off(now))
            _close(process)
        elif process is None and now >= self._start_at:
            self.start()
        elif process is not None and self._settings.dsn != latest(self._dsn):
            self._hand_on_dsn(process)

    def _hand_on_dsn(self, process: subprocess.Popen[bytes]) -> None:
        """The password was changed, and the companion cannot ask for the new one."""
        self._settings = replace(self._settings, dsn=latest(self._dsn))
        with contextlib.suppress(OSError):
            assert process.stdin is not None  # noqa: S101 - a pipe was asked for
            process.stdin.write(json.dumps({"dsn": self._settings.dsn}).encode() + b"\n")
            process.stdin.flush()

    def _put_off(self, now: float) -> float:
        """Wait longer before each restart. Returns the seconds."""
        seconds = self._pause.next()
        self._start_at = now + seconds
        return seconds

    def claim_sent(self, feed: int, claim: int) -> None:
        self._epochs[feed] = self.shared.raised
        self.shared.claim_sent(feed, claim)

    def took(self, feed: int, holds: Sequence[HeldLease]) -> None:
        """List what a claim got, before any of it starts."""
        self.shared.enter(holds, int(holds[0].lease.owner.rpartition("/")[2]), self._epochs.get(feed, 0))
        self.shared.claim_answered(feed)

    def in_doubt(self, hold: HeldLease) -> bool:
        """It was not started, and the companion has released jobs since it was claimed."""
        return hold.began_at is None and hold.epoch != self.shared.raised

    def has_released(self) -> bool:
        """Whether the companion has released jobs since the last call."""
        seen, self._seen = self._seen, self.shared.raised
        return seen != self._seen

    @property
    def is_releasing(self) -> bool:
        return self._process is not None and self.shared.done < self.shared.raised

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """It ends when its pipe closes, or at a last line: another process may hold the pipe open."""
        process, self._process = self._process, None
        if process is not None:
            _close(process, b"end\n")
            try:
                process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.shared.close()


def _close(process: subprocess.Popen[bytes], last_word: bytes = b"") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.write(last_word)
            process.stdin.close()


def _log_form() -> events.LogForm | None:
    """How the companion should write its events to standard error: as the program does. None: that logs none."""
    logger: logging.Logger | None = logging.getLogger("faultline.events")
    if logger is None or not logger.isEnabledFor(logging.ERROR):
        return None
    while logger is not None:
        handlers = [one for one in logger.handlers if not isinstance(one, logging.NullHandler)]
        if handlers:
            return "text" if any(isinstance(one.formatter, events.TextLines) for one in handlers) else "json"
        logger = logger.parent if logger.propagate else None
    return None
