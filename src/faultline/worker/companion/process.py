"""A small process beside a worker: it keeps the worker's leases while the worker cannot, and kills it when it is stuck.

    python -m faultline.worker.companion.process      (started by the worker, which sends its settings and holds the pipe)

It reads the shared memory a few times a second and uses the database only when the worker is silent:

- the interpreter is held (no thread runs): it renews the leases of started jobs;
- the event loop is blocked: it releases jobs that were not started, so that other workers can run them;
- the loop is silent for longer than allowed, or a stop takes too long: it logs the tasks and kills the process.

It keeps no leases of a worker that is stopped, dead or no longer its parent. Every write is fenced by the lease: a mistake
here costs work, not correctness.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.core import events
from faultline.worker.companion.memory import Shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.companion.database import Rescue

LOOK_SECONDS = 0.25
#: After such a gap between two looks, this process itself did not run, and the worker's silence means nothing.
_OWN_GAP_SECONDS = 2.0
#: The watching thread of a healthy worker ticks every half second.
_HELD_SECONDS = 1.25
_BLOCKED_SECONDS = 2.0
#: How long a stop may take beyond the grace time: with a loop that ticks, and with one that is blocked.
_STOP_SECONDS, _BLOCKED_STOP_SECONDS = 20.0, 3.0
#: A worker whose loop ticks reports within this time after a signal that it stops.
_SAY_SO_SECONDS = 2.0
_CALM_SECONDS = 30.0
#: How long a killed process may take to be gone.
_DEATH_SECONDS = 5.0
_KILLED = "the process was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The worker sends it once, as a line of JSON."""

    dsn: str
    worker: str
    parent: int
    memory: int
    capacity: int
    #: A file that the worker's signal handler writes to: empty until the process gets a signal to stop.
    signals: int | None
    health: int | None
    grace_seconds: float
    #: The process runs only the worker, so the companion may kill it.
    owns_process: bool
    #: None: it logs nothing.
    logs: events.LogForm | None


class Companion:
    def __init__(self, settings: Settings, shared: Shared, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._dsn = settings.dsn
        self._shared = shared
        self._monotonic = monotonic
        self._looked_at = self._counts_from = monotonic()
        #: When the companion saw that the worker is to stop; None: it is not.
        self.stop_seen_at: float | None = None
        self._signals_seen = 0
        self._blocked_logged = self._overdue_logged = False
        self._held = self._blocked = False
        self._wanted = threading.Event()
        self._helper: Rescue | None = None
        threading.Thread(target=self._rescue, name="faultline-rescue", daemon=True).start()

    def use_dsn(self, dsn: str) -> None:
        """Connect with this one from now on."""
        self._dsn = dsn
        if self._helper is not None:
            self._helper.use_dsn(dsn)

    def look(self) -> None:
        """Check the worker and wake the database thread where it needs help. Never waits."""
        now, shared = self._monotonic(), self._shared
        gap, self._looked_at = now - self._looked_at, now
        quiet_since = min(shared.loop_at, shared.watch_at)
        if gap > _OWN_GAP_SECONDS or (now - quiet_since > 3 * LOOK_SECONDS and is_stopped(self._settings.parent)):
            # Stopped: its leases are to expire. Silence counts from when it runs again.
            self._counts_from = now
        held_for = now - max(shared.watch_at, self._counts_from)
        blocked_for = now - max(shared.loop_at, self._counts_from)
        self._blocked = blocked_for > _BLOCKED_SECONDS
        overdue = self._blocked and blocked_for > shared.blocking_allowed()
        self._held = held_for > _HELD_SECONDS and not overdue
        if self._held or self._blocked:
            self._wanted.set()
        if overdue:
            self._overdue(now - shared.loop_at)
        elif self._blocked and not self._blocked_logged:
            self._blocked_logged = True
            tasks, job_ids = self._running()
            seconds = round(now - shared.loop_at, 1)
            worker, pid = self._settings.worker, self._settings.parent
            events.emit("event_loop_blocked", worker=worker, pid=pid, seconds=seconds, tasks=tasks, job_ids=job_ids)
        elif not self._blocked:
            self._blocked_logged = self._overdue_logged = False
        self._see_to_stop(now)

    def _see_to_stop(self, now: float) -> None:
        settings = self._settings
        if not settings.owns_process:
            return
        self._notice_stop(now)
        late = _BLOCKED_STOP_SECONDS if self._blocked else _STOP_SECONDS
        if self.stop_seen_at is not None and now > self.stop_seen_at + settings.grace_seconds + late:
            tasks, job_ids = self._running()
            seconds = round(now - self.stop_seen_at, 1)
            worker, pid = settings.worker, settings.parent
            events.emit(
                "stop_overdue", worker=worker, pid=pid, seconds=seconds, tasks=tasks, job_ids=job_ids, action=_KILLED
            )
            self._end()

    def _notice_stop(self, now: float) -> None:
        """A signal counts before the worker reports that it stops: its loop may be blocked."""
        signals = 0 if self._settings.signals is None else os.fstat(self._settings.signals).st_size
        if self._shared.stop_asked_at > 0 or signals > self._signals_seen:
            self._signals_seen = signals
            self.stop_seen_at = now if self.stop_seen_at is None else self.stop_seen_at
        elif self.stop_seen_at is not None and self._shared.loop_at > self.stop_seen_at + _SAY_SO_SECONDS:
            # The signal went to a process that a task forked, which inherited the file.
            self.stop_seen_at = None

    def _overdue(self, seconds: float) -> None:
        if not self._overdue_logged:
            self._overdue_logged = True
            action = _KILLED if self._settings.owns_process else "leases are not renewed any more"
            (tasks, job_ids), seconds = self._running(), round(seconds, 1)
            worker, pid = self._settings.worker, self._settings.parent
            events.emit(
                "event_loop_timeout", worker=worker, pid=pid, seconds=seconds, tasks=tasks, job_ids=job_ids, action=action
            )

        if self._settings.owns_process:
            self._end(blocked_seconds=seconds)

    def _end(self, *, blocked_seconds: float | None = None) -> None:
        if os.getppid() == self._settings.parent:
            os.kill(self._settings.parent, signal.SIGKILL)
            if blocked_seconds is not None:
                with contextlib.suppress(Exception):  # then its jobs are reaped, as after any crash
                    self._release_or_fail(blocked_seconds)
        os._exit(0)

    def _release_or_fail(self, seconds: float) -> None:
        """The process is gone, and it is known which job blocked its loop: its attempt has failed, and what ran beside it is
        given back at once. Nobody else could tell them apart: the next worker would run all of them together again.
        """
        serial, since = self._shared.blocker
        if not serial or since > self._shared.loop_at + 2 * _BLOCKED_SECONDS or self._monotonic() - since < 2 * LOOK_SECONDS:
            return  # another one was there before: the loop may only have had too much to do
        over_at = self._monotonic() + _DEATH_SECONDS
        while os.getppid() == self._settings.parent and not is_stopped(self._settings.parent):
            if self._monotonic() > over_at:
                return
            time.sleep(0.01)
        from faultline.worker.companion.database import Rescue  # noqa: PLC0415 - as in `_help`

        Rescue(self._dsn, self._settings.worker, self._shared, self._monotonic).release_or_fail(serial, seconds)

    def _running(self) -> tuple[str, str]:
        """The started tasks and jobs."""
        running = self._shared.running()
        return ", ".join(sorted({task for task, _ in running})), ", ".join(str(job_id) for _, job_id in running)

    # In its own thread: a database that does not answer must not stop the looking.

    def _rescue(self) -> None:
        failing_since: float | None = None
        while True:
            calm = not self._wanted.wait(_CALM_SECONDS)
            self._wanted.clear()
            try:
                self._help(calm=calm)
            except Exception as error:  # noqa: BLE001 - any error: try again at the next look
                if failing_since is None:
                    # Once: an outage may last for hours.
                    failing_since = self._monotonic()
                    events.emit("companion_failed", worker=self._settings.worker, error=str(error))
                time.sleep(LOOK_SECONDS)
            else:
                if failing_since is not None:
                    seconds, failing_since = self._monotonic() - failing_since, None
                    events.emit("companion_resumed", worker=self._settings.worker, seconds=round(seconds, 1))

    def _help(self, *, calm: bool) -> None:
        if calm:
            if self._helper is not None:
                self._helper.close()
            return
        if self._helper is None:
            # Load the driver only when it is first needed.
            from faultline.worker.companion.database import Rescue  # noqa: PLC0415

            self._helper = Rescue(self._dsn, self._settings.worker, self._shared, self._monotonic)
        if self._held:
            self._helper.renew()
        if self._blocked:
            self._helper.release()


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, dead, or writing its core."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return True
        listed = subprocess.run(["/bin/ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return listed.stdout.strip()[:1] in ("", "T", "Z")
    if stat.rpartition(")")[2].split()[0] in "TtZX":
        return True
    with contextlib.suppress(OSError):
        return "CoreDumping:\t1" in Path(f"/proc/{pid}/status").read_text()
    return False


def main() -> None:
    # A terminal and systemd send these to the whole group. The companion ends only when the worker ends.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Unbuffered: a buffer could swallow the last line, which the loop below waits for in the pipe.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as said:
        settings = Settings(**json.loads(said.readline()))
    if settings.logs is not None:
        events.log_events(form=settings.logs)
    shared = Shared(settings.memory, settings.capacity)
    companion = Companion(settings, shared)
    if settings.health is not None:
        from faultline.worker.companion import health  # noqa: PLC0415

        health.serve(socket.socket(fileno=settings.health), lambda: [shared])
    pipe = sys.stdin.fileno()
    while os.getppid() == settings.parent:
        readable, _, _ = select.select([pipe], [], [], LOOK_SECONDS)
        if readable:
            said_last = os.read(pipe, 65536).rpartition(b"\n")[0].rpartition(b"\n")[2]
            if not said_last.startswith(b"{"):
                break  # closed, or the last line: the worker is gone
            companion.use_dsn(json.loads(said_last)["dsn"])
        companion.look()
    os._exit(0)


if __name__ == "__main__":
    main()
