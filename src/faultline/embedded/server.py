"""Join, leave, start and stop the server of a folder. The promise: after the last `close` nothing is left running.

To join: lock `users.lock` shared (this waits while an old server is being stopped), then under `start.lock` start a
keeper if there is none, and wait until its server is ready. Programs that start at once line up at `start.lock`: the
first starts the server, the others find it.

To leave: under `start.lock`, drop the own lock on `users.lock` and try to get it exclusively.

* Got it: nobody else is there. Stop the server, holding the lock, so that a newcomer waits for the end.
* Others hold it shared: they are users, and whoever of them is last does the above. Leavers cannot miss each other
  (each taking the other for a user who stays), since `start.lock` lets only one leave at a time.
* It is held exclusively: that can only be the keeper, which was faster and stops the server. Wait for it.

A keeper that was killed leaves its server running; then the last one to leave stops the server itself.
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
from faultline.embedded.place import Place, make_folder, place_of, remove, settle, socket_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_RUN_KEEPER = Path(__file__).with_name("run_keeper.py")
_PATIENCE = 120.0  # longer than any step takes that ends at all: recovery after a crash, a slow shutdown
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Status:
    running: bool
    pid: int | None
    dsn: str | None
    version: str | None  # of the data, such as "18"; None before the first start
    data: Path
    users: int | None  # programs that use it now; None where the system does not tell
    kept: bool  # by `start`: runs without users


class Server:
    """A use of the server: it runs at least until `close`, or until this process ends in whatever way."""

    def __init__(self, place: Place, users: int, dsn: str, settings: Mapping[str, str]) -> None:
        self.dsn = dsn
        self._settings = settings
        self.folder = place.folder
        self._place = place
        self._users = users
        self._process = os.getpid()
        atexit.register(self.close)

    def revive(self) -> None:
        """Start again what was killed, the keeper included; for a program whose connections fail. `dsn` may change.

        A killed server comes back by itself, since its keeper sees to it. A killed keeper does so only here and when
        another program joins.
        """
        if self._users < 0:
            raise EmbeddedError(f"This use of the server in {self.folder} was closed. Call join() again.")
        self.dsn = _dsn(_ensure_running(self._place, self._settings)[1])

    def close(self) -> None:
        """Stop using it. When nobody else does, this returns after the server has ended."""
        users, self._users = self._users, -1
        atexit.unregister(self.close)
        if users < 0:
            return
        if os.getpid() != self._process:
            # A forked child shares the lock with its parent: it must not leave in the parent's name.
            os.close(users)
            return
        _leave(self._place, users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def join(folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Server:
    """Use the server of that folder; it is started, with these settings, when it does not run."""
    settings = dict(settings or {})
    cluster.check_settings(settings)
    place = place_of(folder)
    make_folder(place)
    try:
        users = locks.acquire(place.users_lock, locks.SHARED, _PATIENCE)
    except OSError as error:  # TimeoutError is one
        raise EmbeddedError(f"Cannot use the embedded server in {place.folder}: {error}") from error
    try:
        place, running = _ensure_running(place, settings)
    except BaseException:
        _leave(place_of(place.folder), users)
        raise
    return Server(place, users, _dsn(running), settings)


def start(folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Status:
    """Start the server and let it run, used or not, until `stop`."""
    with join(folder, settings=settings) as server:
        (server.folder / keeper.KEPT).write_text(keeper.boot_id() + "\n")
        return status(server.folder)


def stop(folder: Path | None = None) -> bool:
    """Stop the server now, whoever uses it. False when none ran."""
    place = place_of(folder)
    if not place.folder.is_dir():
        return False
    with _starting(place):
        place.kept.unlink(missing_ok=True)
        return _halt(place)


def destroy(folder: Path | None = None) -> None:
    """Stop the server and remove its data, wherever it lies, and all other files made for it."""
    place = place_of(folder)
    if place.folder.is_dir():
        with _starting(place):
            _halt(place)
            remove(place)
    if os.geteuid() == 0:
        copies.remove_unused()


def status(folder: Path | None = None) -> Status:
    place = place_of(folder)
    try:
        running = postmaster.living(place.data)
        usable = running is not None and running.ready
        return Status(
            running=usable,
            pid=running.pid if running is not None else None,
            dsn=_dsn(running) if running is not None and usable else None,
            version=place.version,
            data=place.data,
            users=_count_users(place) if usable else 0,
            kept=usable and keeper.is_kept(place.folder),
        )
    except PermissionError as error:
        raise EmbeddedError(f"{place.folder} belongs to another user: {error}. Run as that user.") from error


def _starting(place: Place) -> locks.Held:
    try:
        return locks.Held(locks.acquire(place.start_lock, locks.EXCLUSIVE, _PATIENCE))
    except OSError as error:
        raise EmbeddedError(f"The server in {place.folder} can be neither started nor stopped now: {error}") from error


def _ensure_running(place: Place, settings: Mapping[str, str]) -> tuple[Place, postmaster.Postmaster]:
    with _starting(place):
        for _ in range(_ATTEMPTS):
            # Now, and not before: another program may have decided meanwhile where the data lies.
            place = place_of(place.folder)
            if locks.is_free(place.keeper_lock):
                place = _launch(place, settings)
            running = _ready(place)
            # Asked again: a keeper that was being killed at the first question still held its lock then.
            if running is not None and not locks.is_free(place.keeper_lock):
                return place, running
    raise EmbeddedError(
        f"The server in {place.folder} was started {_ATTEMPTS} times, but its keeper process ended each time. The "
        f"last lines of {place.keeper_log} and {place.server_log}:\n"
        f"{keeper.last_lines(place.keeper_log)}\n{keeper.last_lines(place.server_log)}"
    )


def _launch(place: Place, settings: Mapping[str, str]) -> Place:
    """Make the data if there is none, and start a keeper. Called with `start.lock` held and no keeper alive."""
    binaries = find_binaries()
    cluster.check_version(place, binaries)
    place, account = settle(place.folder)
    cluster.check_version(place, binaries)  # settled elsewhere, it may have found older data
    with copies.usable_by(account, binaries) as usable:
        if not place.data.exists():
            cluster.initialise(place, account, usable, settings)
        socket, temporary = socket_folder(place, account)
        place.failure.unlink(missing_ok=True)
        task = keeper.Task(
            folder=str(place.folder),
            data=str(place.data),
            postgres=usable.program("postgres"),
            socket=socket,
            temporary=temporary,
            user=account.uid if account.switches else None,
            group=account.gid if account.switches else None,
            settings={**cluster.SETTINGS, **settings},
            copy=str(usable.copy) if usable.copy is not None else "",
        )
        _start_keeper(place, task)
    return place


def _start_keeper(place: Place, task: keeper.Task) -> None:
    keeper.bound(place.keeper_log)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(place.keeper_log, flags, 0o600)
    try:
        # -I and -S: the caller's PYTHONPATH and site-packages are slow to read and may be broken; see run_keeper.
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
            f"The keeper process of the server in {place.folder} did not start (status {ended.returncode}). The last "
            f"lines of {place.keeper_log}:\n{keeper.last_lines(place.keeper_log)}"
        )


def _ready(place: Place) -> postmaster.Postmaster | None:
    """Wait for the server. None when its keeper ended without a word, as it does when it was stopped or killed."""
    seen: list[postmaster.Postmaster | None] = []

    def settled() -> bool:
        running = postmaster.living(place.data)
        if running is not None and running.ready:
            seen.append(running)
        elif place.failure.exists():
            raise EmbeddedError(_failed(place))
        elif locks.is_free(place.keeper_lock):
            # Once more: the keeper may have written it between the two questions, as its last act.
            if place.failure.exists():
                raise EmbeddedError(_failed(place))
            seen.append(None)
        return bool(seen)

    if not locks.wait_until(settled, _PATIENCE):
        raise EmbeddedError(
            f"The server in {place.folder} is not ready after {_PATIENCE:.0f} s. It may be recovering from a crash: "
            f"see {place.server_log} and try again. Its last lines:\n{keeper.last_lines(place.server_log)}"
        )
    return seen[-1]


def _failed(place: Place) -> str:
    return (
        f"PostgreSQL in {place.folder} does not start: {place.failure.read_text(errors='replace').strip()}\n"
        f"Fix the cause and try again. The full log: {place.server_log}"
    )


def _leave(place: Place, users: int) -> None:
    try:
        starting = _starting(place)
    except EmbeddedError:
        os.close(users)  # the keeper will notice
        if not place.folder.is_dir():  # removed below us: the keeper stops the server for that reason
            return
        raise
    with starting:
        os.close(users)
        rest = locks.open_lock(place.users_lock)
        try:
            if locks.try_lock(rest, locks.EXCLUSIVE):
                if not keeper.is_kept(place.folder):
                    _halt(place)
            elif not locks.try_lock(rest, locks.SHARED):
                _await_end_of_keeper(place)
        finally:
            os.close(rest)


def _halt(place: Place) -> bool:
    """Stop the server, through its keeper or without. Called with `start.lock` held, so no other one is started."""
    ran = not locks.is_free(place.keeper_lock)
    keeping = _keeper_pid(place)
    if ran and keeping is not None:
        with suppress(ProcessLookupError):
            os.kill(keeping, signal.SIGTERM)
    _await_end_of_keeper(place)
    running = postmaster.living(place.data)
    if running is None:
        return ran
    pid = running.pid
    if not postmaster.end(pid, lambda: postmaster.is_postmaster(pid, place.data)):
        raise EmbeddedError(f"The server in {place.folder}, process {pid}, does not stop. See {place.server_log}.")
    return True


def _keeper_pid(place: Place) -> int | None:
    try:
        pid = int(place.keeper_lock.read_text())
    except (FileNotFoundError, ValueError):
        return None
    # It may have ended and its pid be somebody else's by now: nobody else gets our signal.
    command = postmaster.command_of(pid) or ""
    return pid if _RUN_KEEPER.name in command and json.dumps(str(place.folder)) in command else None


def _await_end_of_keeper(place: Place) -> None:
    pid = _keeper_pid(place)
    if not locks.wait_until(lambda: locks.is_free(place.keeper_lock), _PATIENCE):
        raise EmbeddedError(
            f"The keeper of {place.folder}, process {pid}, does not stop. The last lines of {place.keeper_log}:\n"
            f"{keeper.last_lines(place.keeper_log)}"
        )
    # The lock is given back a moment before the process is gone.
    locks.wait_until(lambda: pid is None or postmaster.command_of(pid) is None, 2.0)


def _dsn(running: postmaster.Postmaster) -> str:
    host = running.socket.replace("\\", "\\\\").replace("'", "\\'")
    return f"host='{host}' port={postmaster.PORT} user={cluster.NAME} dbname={cluster.NAME}"


def _count_users(place: Place) -> int | None:
    # Not by trying the lock: for an instant that would look like a user to one who leaves.
    try:
        lines = Path("/proc/locks").read_text().splitlines()
        inode = place.users_lock.stat().st_ino
    except FileNotFoundError:
        return None
    return sum(1 for line in lines if " FLOCK " in line and " READ " in line and f":{inode} " in line)
