"""A small process beside a worker that looks after its leases while the worker cannot, and ends it when it is stuck.

    python -m faultline.worker.companion      (started by the worker, which sends its settings and holds the pipe)

It looks at the shared memory a few times a second and touches the database only when the worker has fallen silent:

- the interpreter is held (no thread runs): it renews the leases of what was begun;
- the event loop is blocked: it gives back the leases of what was not begun, so that others can run it;
- the loop is silent for longer than allowed, or a stop takes too long: it names the tasks and ends the process.

It never keeps a worker's leases that is stopped, dead or not its parent any more, and it needs nothing to be right: every
write is fenced by the lease. A mistake here would cost work, not correctness.
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
from faultline.worker.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from faultline.worker.rescue import Rescue

LOOK_SECONDS = 0.25
#: A gap between two looks that says that this process did not run itself: then nobody else's silence means anything.
_OWN_GAP_SECONDS = 2.0
#: The watching thread of a healthy worker is seen every half second.
_HELD_SECONDS = 1.25
_BLOCKED_SECONDS = 2.0
#: How long a stop may take beyond the grace time: with a loop that ticks, and with one that is blocked.
_STOP_SECONDS, _BLOCKED_STOP_SECONDS = 20.0, 3.0
#: A worker whose loop ticks says within this time of a signal that it stops.
_SAY_SO_SECONDS = 2.0
_CALM_SECONDS = 30.0
_KILLED = "the process was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the worker says once, as a line of JSON."""

    dsn: str
    worker: str
    parent: int
    memory: int
    capacity: int
    #: A file that the worker's signal handler writes to. It is empty until somebody asks the process to stop.
    signals: int | None
    health: int | None
    grace_seconds: float
    #: The process is the worker's own, so it may be ended.
    owns_process: bool
    logs: bool


class Companion:
    """Looks, judges, and has done what is to be done in the database."""

    def __init__(self, settings: Settings, shared: Shared, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._shared = shared
        self._monotonic = monotonic
        self._looked_at = self._counts_from = monotonic()
        #: When it was seen that the worker is asked to stop; None: it is not.
        self.stop_seen_at: float | None = None
        self._signals_seen = 0
        self._blocked_logged = self._overdue_logged = False
        self._held = self._blocked = False
        self._wanted = threading.Event()
        self._helper: Rescue | None = None
        threading.Thread(target=self._rescue, name="faultline-rescue", daemon=True).start()

    def look(self) -> None:
        """See how the worker does, and want done what it cannot do itself. Never waits for anything."""
        now, shared = self._monotonic(), self._shared
        gap, self._looked_at = now - self._looked_at, now
        quiet_since = min(shared.loop_at, shared.watch_at)
        if gap > _OWN_GAP_SECONDS or (now - quiet_since > 3 * LOOK_SECONDS and is_stopped(self._settings.parent)):
            # Stopped: its leases are to run out. Silence counts from when it may run again.
            self._counts_from = now
        held_for = now - max(shared.watch_at, self._counts_from)
        blocked_for = now - max(shared.loop_at, self._counts_from)
        self._blocked = blocked_for > _BLOCKED_SECONDS
        overdue = self._blocked and blocked_for > shared.silence_allowed()
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
            events.emit("loop_silent", worker=worker, pid=pid, seconds=seconds, tasks=tasks, job_ids=job_ids)
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
        """A signal counts before the worker can say that it stops: its loop may be blocked. One that ticks would say so."""
        signals = 0 if self._settings.signals is None else os.fstat(self._settings.signals).st_size
        if self._shared.stop_asked_at > 0 or signals > self._signals_seen:
            self._signals_seen = signals
            self.stop_seen_at = now if self.stop_seen_at is None else self.stop_seen_at
        elif self.stop_seen_at is not None and self._shared.loop_at > self.stop_seen_at + _SAY_SO_SECONDS:
            # It was another process that inherited the file: something that a task has forked.
            self.stop_seen_at = None

    def _overdue(self, seconds: float) -> None:
        if not self._overdue_logged:
            self._overdue_logged = True
            action = _KILLED if self._settings.owns_process else "leases are not renewed any more"
            (tasks, job_ids), seconds = self._running(), round(seconds, 1)
            worker, pid = self._settings.worker, self._settings.parent
            events.emit("loop_overdue", worker=worker, pid=pid, seconds=seconds, tasks=tasks, job_ids=job_ids, action=action)

        if self._settings.owns_process:
            self._end()

    def _end(self) -> None:
        if os.getppid() == self._settings.parent:
            os.kill(self._settings.parent, signal.SIGKILL)
        os._exit(0)

    def _running(self) -> tuple[str, str]:
        """The tasks and the jobs that were begun."""
        running = self._shared.running()
        return ", ".join(sorted({task for task, _ in running})), ", ".join(str(job_id) for _, job_id in running)

    # On a thread of its own: a database that does not answer must not keep it from looking.

    def _rescue(self) -> None:
        failing_since: float | None = None
        while True:
            calm = not self._wanted.wait(_CALM_SECONDS)
            self._wanted.clear()
            try:
                self._help(calm=calm)
            except Exception as error:  # noqa: BLE001 - whatever the server said, it is asked again at the next look
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
            # The driver is loaded when it is needed for the first time.
            from faultline.worker.rescue import Rescue  # noqa: PLC0415

            self._helper = Rescue(self._settings.dsn, self._settings.worker, self._shared, self._monotonic)
        if self._held:
            self._helper.renew()
        if self._blocked:
            self._helper.give_back()


def is_stopped(pid: int) -> bool:
    """Whether a process stands still because somebody stopped it, is dead, or is writing its core."""
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
    # A terminal and systemd send these to the whole group. We end when the worker does, and by nothing else.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Unbuffered: a buffer might take in the last word, for which the loop below looks at the pipe.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as said:
        settings = Settings(**json.loads(said.readline()))
    if settings.logs:
        events.log_events()
    shared = Shared(settings.memory, settings.capacity)
    companion = Companion(settings, shared)
    if settings.health is not None:
        from faultline.worker import health  # noqa: PLC0415

        health.serve(socket.socket(fileno=settings.health), lambda: [shared])
    pipe = sys.stdin.fileno()
    while os.getppid() == settings.parent:
        readable, _, _ = select.select([pipe], [], [], LOOK_SECONDS)
        if readable:
            break  # nobody writes any more, or the last word: the worker is gone
        companion.look()
    os._exit(0)


if __name__ == "__main__":
    main()
