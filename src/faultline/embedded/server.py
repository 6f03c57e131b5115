"""Join, leave, start and stop the server of a folder. The promise: after the last `close` nothing is left running.

To join: lock `users.lock` shared (this waits while an old server is being stopped); then, under `start.lock`, start a keeper
if there is none, and wait until its server is ready. Of programs that start together, the first starts the server.

To leave: under `start.lock`, release the own lock on `users.lock` and try to get it exclusively.

* Got it: nobody else uses the server. Stop it, holding the lock, so that a new user waits for the end.
* Others hold it shared: they are users, and the last of them does the above. Two that leave cannot take each other for a
  user who stays, because `start.lock` lets only one leave at a time.
* It is held exclusively: the keeper was faster and stops the server. Wait for it.

A keeper that was killed leaves its server running; then the last user stops the server itself.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from faultline.core.errors import EmbeddedError
from faultline.embedded import cluster, copies, keeper, locks, postmaster
from faultline.embedded.binaries import find_binaries
from faultline.embedded.files import Files, choose_home, files_of, make_folder, remove, socket_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_RUN_KEEPER = Path(__file__).with_name("run_keeper.py")
_PATIENCE = 120.0  # longer than recovery after a crash or a slow shutdown takes
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Status:
    running: bool
    pid: int | None
    dsn: str | None
    version: str | None  # of the data, such as "18"; None before the first start
    data: Path
    users: int | None  # programs that use it now; None: unknown on this system
    kept: bool  # by `start`: it runs without users


class Server:
    """A use of the server: it runs at least until `close`, or until this process ends."""

    def __init__(self, files: Files, users: int, dsn: str, settings: Mapping[str, str]) -> None:
        self.dsn = dsn
        self._settings = settings
        self.folder = files.folder
        self._files = files
        self._users = users
        self._process = os.getpid()
        atexit.register(self.close)

    def revive(self) -> None:
        """Restart what was killed, for a program whose connections fail. `dsn` may change.

        The keeper restarts a killed server. A killed keeper is restarted only here and when another program joins.
        """
        if self._users < 0:
            raise EmbeddedError(f"This use of the server in {self.folder} was closed. Call join() again.")
        self.dsn = _dsn(_ensure_running(self._files, self._settings)[1])

    def close(self) -> None:
        """Stop using it. If nobody else does, the server ends before this returns."""
        users, self._users = self._users, -1
        atexit.unregister(self.close)
        if users < 0:
            return
        if os.getpid() != self._process:
            # A forked child shares the lock with its parent, and must not release it.
            os.close(users)
            return
        _leave(self._files, users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def join(folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Server:
    """Use the server of that folder. If it does not run, it is started with these settings."""
    settings = dict(settings or {})
    cluster.check_settings(settings)
    files = files_of(folder)
    make_folder(files)
    try:
        users = locks.acquire(files.users_lock, locks.SHARED, _PATIENCE)
    except OSError as error:  # TimeoutError is one
        raise EmbeddedError(f"Cannot use the embedded server in {files.folder}: {error}") from error
    try:
        files, running = _ensure_running(files, settings)
    except BaseException:
        _leave(files_of(files.folder), users)
        raise
    return Server(files, users, _dsn(running), settings)


def start(folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Status:
    """Start the server and let it run until `stop`, used or not."""
    with join(folder, settings=settings) as server:
        (server.folder / keeper.KEPT).write_text(keeper.boot_id() + "\n")
        return status(server.folder)


def stop(folder: Path | None = None) -> bool:
    """Stop the server now, even if programs use it. False: it did not run."""
    files = files_of(folder)
    if not files.folder.is_dir():
        return False
    with _starting(files):
        files.kept.unlink(missing_ok=True)
        return _halt(files)


def destroy(folder: Path | None = None) -> None:
    """Stop the server and remove its data and all other files of it."""
    files = files_of(folder)
    if files.folder.is_dir():
        with _starting(files):
            _halt(files)
            remove(files)
    if os.geteuid() == 0:
        copies.remove_unused()


def status(folder: Path | None = None) -> Status:
    files = files_of(folder)
    try:
        running = postmaster.living(files.data)
        usable = running is not None and running.ready
        return Status(
            running=usable,
            pid=running.pid if running is not None else None,
            dsn=_dsn(running) if running is not None and usable else None,
            version=files.version,
            data=files.data,
            users=_count_users(files) if usable else 0,
            kept=usable and keeper.is_kept(files.folder),
        )
    except PermissionError as error:
        raise EmbeddedError(f"{files.folder} belongs to another user: {error}. Run as that user.") from error


def _starting(files: Files) -> locks.Held:
    try:
        return locks.Held(locks.acquire(files.start_lock, locks.EXCLUSIVE, _PATIENCE))
    except OSError as error:
        raise EmbeddedError(f"The server in {files.folder} can be neither started nor stopped now: {error}") from error


def _ensure_running(files: Files, settings: Mapping[str, str]) -> tuple[Files, postmaster.Postmaster]:
    with _starting(files):
        for _ in range(_ATTEMPTS):
            # Under the lock: another program may have decided meanwhile where the data is.
            files = files_of(files.folder)
            if locks.is_free(files.keeper_lock):
                files = _launch(files, settings)
            running = _ready(files)
            # Check again: a keeper that was being killed may still have held its lock before.
            if running is not None and not locks.is_free(files.keeper_lock):
                return files, running
    raise EmbeddedError(
        f"The server in {files.folder} was started {_ATTEMPTS} times, but its keeper process ended each time. The "
        f"last lines of {files.keeper_log} and {files.server_log}:\n"
        f"{keeper.last_lines(files.keeper_log)}\n{keeper.last_lines(files.server_log)}"
    )


def _launch(files: Files, settings: Mapping[str, str]) -> Files:
    """Make the data if there is none, and start a keeper. Called with `start.lock` held and no keeper running."""
    binaries = find_binaries()
    cluster.check_version(files, binaries)
    files, account = choose_home(files.folder)
    cluster.check_version(files, binaries)  # another home may have older data
    with copies.usable_by(account, binaries) as usable:
        if not files.data.exists():
            cluster.initialise(files, account, usable, settings)
        socket, temporary = socket_folder(files, account)
        files.failure.unlink(missing_ok=True)
        task = keeper.Task(
            folder=str(files.folder),
            data=str(files.data),
            postgres=usable.program("postgres"),
            socket=socket,
            temporary=temporary,
            user=account.uid if account.switches else None,
            group=account.gid if account.switches else None,
            settings={**cluster.SETTINGS, **settings},
            copy=str(usable.copy) if usable.copy is not None else "",
        )
        _start_keeper(files, task)
    return files


def _start_keeper(files: Files, task: keeper.Task) -> None:
    keeper.bound(files.keeper_log)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(files.keeper_log, flags, 0o600)
    try:
        # -I and -S: see run_keeper.
        ended = subprocess.run(
            [sys.executable, "-I", "-S", str(_RUN_KEEPER), json.dumps(asdict(task))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(log)
    if ended.returncode not in (0, keeper.EXIT_OTHER_KEEPER):
        raise EmbeddedError(
            f"The keeper process of the server in {files.folder} did not start (status {ended.returncode}). The last "
            f"lines of {files.keeper_log}:\n{keeper.last_lines(files.keeper_log)}"
        )


def _ready(files: Files) -> postmaster.Postmaster | None:
    """Wait for the server. None: its keeper ended without a failure, because it was stopped or killed."""
    seen: list[postmaster.Postmaster | None] = []

    def is_decided() -> bool:
        running = postmaster.living(files.data)
        if running is not None and running.ready:
            seen.append(running)
        elif files.failure.exists():
            raise EmbeddedError(_failed(files))
        elif locks.is_free(files.keeper_lock):
            # Check again: the keeper may have written it just before it ended.
            if files.failure.exists():
                raise EmbeddedError(_failed(files))
            seen.append(None)
        return bool(seen)

    if not locks.wait_until(is_decided, _PATIENCE):
        raise EmbeddedError(
            f"The server in {files.folder} is not ready after {_PATIENCE:.0f} s. It may be recovering from a crash: "
            f"see {files.server_log} and try again. Its last lines:\n{keeper.last_lines(files.server_log)}"
        )
    return seen[-1]


def _failed(files: Files) -> str:
    return (
        f"PostgreSQL in {files.folder} does not start: {files.failure.read_text(errors='replace').strip()}\n"
        f"Fix the cause and try again. The full log: {files.server_log}"
    )


def _leave(files: Files, users: int) -> None:
    try:
        starting = _starting(files)
    except EmbeddedError:
        os.close(users)  # the keeper notices
        if not files.folder.is_dir():  # removed: then the keeper stops the server
            return
        raise
    with starting:
        os.close(users)
        rest = locks.open_lock(files.users_lock)
        try:
            if locks.try_lock(rest, locks.EXCLUSIVE):
                if not keeper.is_kept(files.folder):
                    _halt(files)
            elif not locks.try_lock(rest, locks.SHARED):
                _await_end_of_keeper(files)
        finally:
            os.close(rest)


def _halt(files: Files) -> bool:
    """Stop the server, through its keeper if there is one. Called with `start.lock` held, so no other one starts."""
    ran = not locks.is_free(files.keeper_lock)
    keeping = _keeper_pid(files)
    if ran and keeping is not None:
        with suppress(ProcessLookupError):
            os.kill(keeping, signal.SIGTERM)
    _await_end_of_keeper(files)
    running = postmaster.living(files.data)
    if running is None:
        return ran
    pid = running.pid
    if not postmaster.end(pid, lambda: postmaster.is_postmaster(pid, files.data)):
        raise EmbeddedError(f"The server in {files.folder}, process {pid}, does not stop. See {files.server_log}.")
    return True


def _keeper_pid(files: Files) -> int | None:
    try:
        pid = int(files.keeper_lock.read_text())
    except (FileNotFoundError, ValueError):
        return None
    # Its pid may belong to another process by now, which must not get the signal.
    command = postmaster.command_of(pid) or ""
    return pid if _RUN_KEEPER.name in command and json.dumps(str(files.folder)) in command else None


def _await_end_of_keeper(files: Files) -> None:
    pid = _keeper_pid(files)
    if not locks.wait_until(lambda: locks.is_free(files.keeper_lock), _PATIENCE):
        raise EmbeddedError(
            f"The keeper of {files.folder}, process {pid}, does not stop. The last lines of {files.keeper_log}:\n"
            f"{keeper.last_lines(files.keeper_log)}"
        )
    # The lock is released a moment before the process ends.
    locks.wait_until(lambda: pid is None or postmaster.command_of(pid) is None, 2.0)


def _dsn(running: postmaster.Postmaster) -> str:
    host = running.socket.replace("\\", "\\\\").replace("'", "\\'")
    return f"host='{host}' port={postmaster.PORT} user={cluster.NAME} dbname={cluster.NAME}"


def _count_users(files: Files) -> int | None:
    # Not by trying the lock: that would look like another user for an instant.
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        inode = files.users_lock.stat().st_ino
    except FileNotFoundError:
        return None
    return sum(1 for line in lines if " FLOCK " in line and " READ " in line and f":{inode} " in line)
