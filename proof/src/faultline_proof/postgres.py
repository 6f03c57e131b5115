"""A PostgreSQL server of a drill's own: it may be killed, filled up, copied and promoted, and nothing starts it again.

It is made and run like the embedded one, but without a keeper, which would bring back what a drill wants dead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg.conninfo import make_conninfo

from faultline.core.errors import EmbeddedError
from faultline.embedded import cluster, copies, files, find_binaries, keeper, postmaster
from faultline.store.install import migrate
from faultline_proof.verdict import CannotPlay

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE_SECONDS = 60.0


class Postgres:
    """One server in a folder. `with` starts it, and stops and removes it at the end."""

    def __init__(self, folder: Path, *, copy_of: str | None = None, settings: Mapping[str, str] | None = None) -> None:
        """Make its data: an empty, migrated database, or a standby that follows the server of the DSN `copy_of`."""
        self._copy_of = copy_of
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        try:
            binaries = find_binaries()
            files.make_folder(files.files_of(folder))
            self._files, self.account = files.choose_home(folder)
            self._binaries = self._stack.enter_context(copies.usable_by(self.account, binaries))
            socket = self._socket_folder()
        except EmbeddedError as error:
            raise CannotPlay(f"it needs a PostgreSQL server of its own. {error}") from error
        self._settings = {**cluster.SETTINGS, **(settings or {}), "unix_socket_directories": socket}
        self.dsn = make_conninfo(host=socket, port=postmaster.PORT, user=cluster.NAME, dbname=cluster.NAME)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove)
            if self._copy_of is None:
                # Nothing is at stake before it runs, so that nobody has to wait for the disk.
                cluster.initialise(self._files, self.account, self._binaries, {"fsync": "off"})
            else:
                self._copy(self._copy_of)
            self.start()
            if self._copy_of is None:
                with psycopg.connect(self.dsn, autocommit=True) as connection:
                    migrate.migrate(connection)
            self._stack.push(undo.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start it and return when it can be used: recovery after a crash included."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            # Right after a kill it may refuse to start: sessions of the old server are still ending.
            if self._process is None or self._process.poll() is not None:
                self._launch()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn).close()
                return
            if time.monotonic() > give_up:
                raise TimeoutError(f"the server does not start:\n{keeper.last_lines(self._files.server_log)}")
            time.sleep(0.02)

    def kill(self) -> None:
        """`kill -9` of the whole server, its sessions included."""
        if self._process is not None:
            for pid in (self._process.pid, *_children(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def promote(self) -> None:
        """Make a standby the new primary."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("select pg_promote()")

    def _launch(self) -> None:
        command = [self._binaries.program("postgres"), "-D", str(self._files.data)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with self._files.server_log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=keeper.environment(),
                start_new_session=True,  # Ctrl-C is the drill's, which then stops us in order
                user=self.account.uid if self.account.switches else None,
                group=self.account.gid if self.account.switches else None,
                extra_groups=[] if self.account.switches else None,
            )

    def _copy(self, dsn: str) -> None:
        program = self._binaries.program("pg_basebackup")
        if not Path(program).exists():
            raise CannotPlay(f"there is no pg_basebackup in {self._binaries.folder}, which makes standbys")
        words = ["-D", str(self._files.data), "-d", dsn, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        done = self.account.run([program, *words])
        if done.returncode != 0:
            raise RuntimeError(f"the standby could not be made: {done.stderr.strip()}")

    def _socket_folder(self) -> str:
        folder, temporary = files.socket_folder(self._files, self.account)
        if not folder:  # no path below ours is short enough
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir=temporary, ignore_cleanup_errors=True))
            os.chown(folder, self.account.uid, self.account.gid)
        return folder

    def _remove(self) -> None:
        if self._process is not None:
            running = self._process
            postmaster.end(running.pid, lambda: running.poll() is None)
        files.remove(self._files)


def _children(pid: int) -> list[int]:
    """The sessions end by themselves when their server is gone. Where the system names them, they are not asked."""
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
