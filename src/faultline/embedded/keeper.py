"""The process that keeps one PostgreSQL. The promise: the server runs while a program uses it, and not longer.

The first user starts the keeper, detached and as the same user. PostgreSQL is its child, so it notices a dead server at
once. Four times a second it tries to lock `users.lock` exclusively. Every user holds that lock shared, and the kernel drops
it when the user dies: if the keeper gets it, nobody is left. The keeper then stops the server *while holding the lock*: a
new user waits for its shared lock until the old server has ended, and starts a new one. The keeper never releases the lock.

If the server ends while there are users, the keeper starts it again, at once the first time, then with growing pauses. If a
server was never ready, its setup is wrong (a bad setting, a full disk): the keeper writes why to `failure.txt` and ends.

If the keeper is killed, its lock is free: the next new user starts another keeper, which adopts the running server. That
server is not its child, so the keeper watches the process table.

If the folder is removed, nobody can find the server any more: the keeper stops it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from faultline.embedded import locks, postmaster

USERS_LOCK = "users.lock"
KEEPER_LOCK = "keeper.lock"
START_LOCK = "start.lock"
KEPT = "kept"
FAILURE = "failure.txt"
SERVER_LOG = "server.log"
KEEPER_LOG = "keeper.log"

EXIT_OTHER_KEEPER = 3

LOG_LIMIT = 10 * 1024 * 1024
_TICK = 0.25
_TICK_WHILE_STARTING = 0.05
_LONGEST_PAUSE = 5.0
_LINES_OF_LOG = 12
_PRIVATE_SOCKET = "faultline-"
_ONLY_OURS = 0o700
# Temporary errors: sessions of a killed server are still ending, or one is writing its pid file.
_PASSING = ("pre-existing shared memory block", 'lock file "postmaster.pid"')
_PASSES_WITHIN = 20.0
_KILLS_WHILE_STARTING = 3


@dataclass(frozen=True, slots=True)
class Task:
    """What the starting user passes to the keeper."""

    folder: str
    data: str
    postgres: str
    socket: str  # "": a private folder below `temporary`, because the path would be too long
    temporary: str
    user: int | None  # None: run as the keeper's own user
    group: int | None
    settings: dict[str, str]
    copy: str  # the folder of copied binaries that must not be removed meanwhile, or ""


def boot_id() -> str:
    """Changes with every boot, if the system provides it: a server kept before a reboot is not kept after it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return "unknown"


def is_kept(folder: Path) -> bool:
    try:
        return (folder / KEPT).read_text().strip() == boot_id()
    except FileNotFoundError:
        return False


def last_lines(log: Path, since: int = 0) -> str:
    try:
        with log.open("rb") as text:
            text.seek(max(since, text.seek(0, os.SEEK_END) - 16384))
            lines = text.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-_LINES_OF_LOG:])


def bound(log: Path) -> None:
    """Keep a log from filling the disk. PostgreSQL has it open for appending, so truncate it."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_LIMIT:
            with suppress(OSError):  # no room for the older part: it is lost
                log.with_suffix(".old.log").write_bytes(log.read_bytes())
            os.truncate(log, 0)


def say(text: str) -> None:
    with suppress(OSError):  # a full disk must not stop the keeper
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} keeper {os.getpid()}: {text}\n")
        sys.stderr.flush()


class Keeper:
    def __init__(self, task: Task, lock: int) -> None:
        self.task = task
        self.folder = Path(task.folder)
        self.data = Path(task.data)
        self.log = self.folder / SERVER_LOG
        self.lock = lock
        self.users = locks.open_lock(self.folder / USERS_LOCK)
        self.stop_asked = False
        self.child: subprocess.Popen[bytes] | None = None
        self.adopted: int | None = None
        self.private_socket = ""
        self.was_ready = False  # ever
        self.failures = 0  # in a row, without being ready in between
        self.failing_since = time.monotonic()
        self.next_try = self.failing_since
        self.log_start = 0
        self.wake = self._listen()

    def _listen(self) -> int:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_was_asked)
        # Caught: an ignored SIGCHLD would not wake the keeper when the server dies.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return reading

    def _stop_was_asked(self, _number: int, _frame: object) -> None:
        self.stop_asked = True

    def run(self) -> None:
        self.look_for_a_server()
        try:
            while not self.is_over() and self.tend():
                self.pause()
        except OSError as error:
            say(f"failed: {error}")
            self._write_failure(f"could not be run: {error}", "")
        finally:
            self.finish()

    def look_for_a_server(self) -> None:
        """Adopt the server and socket folder of a keeper that was killed."""
        found = postmaster.recorded(self.data)
        if found is None:
            return
        if self._is_private_socket_folder(found.socket):
            self.private_socket = found.socket
        if postmaster.is_postmaster(found.pid, self.data):
            say(f"adopting the running server {found.pid}")
            self.adopted, self.was_ready = found.pid, True

    def is_over(self) -> bool:
        if self.stop_asked:
            say("asked to stop")
        elif not locks.same_file(self.lock, self.folder / KEEPER_LOCK):
            say("the folder was removed")
        elif not is_kept(self.folder) and locks.try_lock(self.users, locks.EXCLUSIVE):
            say("no user is left")
        else:
            return False
        return True

    def pause(self) -> None:
        seconds = _TICK if self.is_alive() else min(_TICK, max(0.0, self.next_try - time.monotonic()))
        if self.child is not None and (self.failures or not self.was_ready):
            seconds = _TICK_WHILE_STARTING
        if select.select([self.wake], [], [], seconds)[0]:
            os.read(self.wake, 4096)

    def is_alive(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return self.adopted is not None and postmaster.is_postmaster(self.adopted, self.data)

    def tend(self) -> bool:
        """Make sure that a server runs. False: give up."""
        bound(self.log)
        if self.is_alive():
            self._note_readiness()
            return True
        if self.child is not None or self.adopted is not None:
            if not self._may_try_again():
                return False
            self.child = self.adopted = None
        if time.monotonic() >= self.next_try:
            self.launch()
        return True

    def _note_readiness(self) -> None:
        if self.was_ready and not self.failures:
            return
        found = postmaster.recorded(self.data)
        if found is not None and found.ready and self.child is not None and found.pid == self.child.pid:
            say(f"the server {found.pid} is ready")
            self.was_ready, self.failures = True, 0
            (self.folder / FAILURE).unlink(missing_ok=True)

    def _may_try_again(self) -> bool:
        # A server that was killed right after it became ready has left a record of that.
        self._note_readiness()
        status = self.child.returncode if self.child is not None else None
        ended = "is gone" if status is None else f"ended with status {status}"
        text = last_lines(self.log, self.log_start)
        say(f"the server {ended}")
        if not self.failures:
            self.failing_since = time.monotonic()
        # Not its own fault: sessions of an earlier server are still ending, or somebody killed it.
        passing = any(sign in text for sign in _PASSING) and time.monotonic() - self.failing_since < _PASSES_WITHIN
        killed = status is not None and status < 0 and self.failures < _KILLS_WHILE_STARTING
        pause = 0.0 if self.was_ready and not self.failures else min(_LONGEST_PAUSE, 0.1 * 2**self.failures)
        self.next_try = time.monotonic() + pause
        give_up = not (self.was_ready or passing or killed)
        if give_up or (self.failures and not passing and not killed):
            # For users that wait. Others may still see it come back, for example when the disk has room again.
            self._write_failure(ended, text)
        self.failures += 1
        return not give_up

    def _write_failure(self, ended: str, text: str) -> None:
        draft = self.folder / (FAILURE + ".new")
        with suppress(OSError):  # no room or no folder: those who wait see that the keeper ended, and show the log
            draft.write_text(f"postgres {ended}.\n{text}\n")
            draft.replace(self.folder / FAILURE)

    def launch(self) -> None:
        if postmaster.remove_stale_pid_file(self.data):
            say("removed the postmaster.pid of a server that is long gone")
        socket = self.socket_folder()
        postmaster.remove_stale_socket(self.data, Path(socket))
        settings = {**self.task.settings, "unix_socket_directories": socket}
        command = [self.task.postgres, "-D", self.task.data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        output = os.open(self.log, flags, 0o600)
        try:
            self.log_start = os.fstat(output).st_size
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment(),
                user=self.task.user,
                group=self.task.group,
                extra_groups=None if self.task.user is None else [],
            )
        finally:
            os.close(output)
        say(f"started the server {self.child.pid}")

    def socket_folder(self) -> str:
        if self.task.socket:
            return self.task.socket
        if not self._is_private_socket_folder(self.private_socket):
            self.private_socket = f"{self.task.temporary}/{_PRIVATE_SOCKET}{os.urandom(8).hex()}"
            os.mkdir(self.private_socket, 0o700)  # noqa: PTH102 - must fail if it exists
            if self.task.user is not None and self.task.group is not None:
                os.chown(self.private_socket, self.task.user, self.task.group)
        return self.private_socket

    def _is_private_socket_folder(self, path: str) -> bool:
        """Whether a keeper made it for this server. The path comes from a file, so check before removing it."""
        if self.task.socket or not Path(path).name.startswith(_PRIVATE_SOCKET):
            return False
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        owner = os.geteuid() if self.task.user is None else self.task.user
        return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _ONLY_OURS and found.st_uid == owner

    def finish(self) -> None:
        pid = self.child.pid if self.child is not None else self.adopted
        if pid is not None and not postmaster.end(pid, self.is_alive):
            say(f"the server {pid} could not be stopped")
        if self._is_private_socket_folder(self.private_socket):
            folder = Path(self.private_socket)
            for left in folder.glob(".s.PGSQL.*"):  # after a SIGKILL
                left.unlink(missing_ok=True)
            folder.rmdir()
        say("ends")
        # In this order: the next holder of users.lock must find keeper.lock free.
        os.close(self.lock)
        os.close(self.users)


def environment() -> dict[str, str]:
    """The environment without variables that change the server, port or language of PostgreSQL's programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def main(text: str) -> int:
    task = Task(**json.loads(text))
    lock = locks.open_lock(Path(task.folder) / KEEPER_LOCK)
    # Try for a while: `is_free` holds it for an instant. Not forever: another keeper may have just started.
    if not locks.wait_until(lambda: locks.try_lock(lock, locks.EXCLUSIVE), 2.0):
        return EXIT_OTHER_KEEPER
    # The starter waits only for this process. The forked keeper has no parent that would have to reap it; it shares the
    # lock, which is held before the starter goes on.
    pid = os.fork()
    if pid:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{pid}\n".encode(), 0)
        os._exit(0)
    if task.copy:
        locks.try_lock(os.open(task.copy, os.O_RDONLY | os.O_CLOEXEC), locks.SHARED)
    Keeper(task, lock).run()
    return 0
