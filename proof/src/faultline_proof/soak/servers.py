"""The PostgreSQL of a soak: one that comes back after it was killed, or a pair, one of which takes over from the other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import embedded
from faultline_proof.postgres import Postgres

if TYPE_CHECKING:
    from pathlib import Path

_STANDBY = "soak_standby"
#: A server that is killed every half minute would otherwise replay five minutes of work each time.
SETTINGS = {"checkpoint_timeout": "30s"}
#: Servers die here, machines do not. A standby looks for its primary often: nothing is acknowledged without it.
_PAIR_SETTINGS = {**SETTINGS, "fsync": "off", "wal_retrieve_retry_interval": "200ms", "max_connections": "200"}


class Servers(Protocol):
    @property
    def dsn(self) -> str: ...

    @property
    def standby_follows(self) -> bool:
        """A standby has all that is acknowledged."""

    def kill(self) -> bool:
        """`kill -9` of the server; it comes back."""

    def promote(self) -> bool:
        """`kill -9` of the server; its standby takes over."""

    def close(self) -> None: ...


class Single:
    """An embedded server. Its keeper starts it again."""

    standby_follows = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._stack.callback(embedded.destroy, folder)
        self.dsn = self._stack.enter_context(embedded.join(folder, settings=SETTINGS)).dsn

    def kill(self) -> bool:
        pid = embedded.status(self._folder).pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

    def promote(self) -> bool:
        return False

    def close(self) -> None:
        self._stack.close()


class Pair:
    """A primary and a synchronous standby, which is promoted when the primary is killed, and gets a standby of its own."""

    def __init__(self, folder: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._folders = [folder / "one", folder / "two"]
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", "faultline_proof.watch", *map(str, self._folders)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._stack.callback(self._dismiss)
        self._primary = Postgres(self._folders[0], settings=_PAIR_SETTINGS).__enter__()
        self._standby: Postgres | None = None
        self._stack.callback(self._end)
        self._following = threading.Thread(target=self._follow, daemon=True)
        self._follow()
        hosts = [str(conninfo_to_dict(server.dsn)["host"]) for server in (self._primary, self._standby) if server]
        #: Whichever of the two can be written to: how clients find the new primary.
        self.dsn = make_conninfo(self._primary.dsn, host=",".join(hosts), target_session_attrs="read-write")

    @property
    def standby_follows(self) -> bool:
        if self._standby is None or self._following.is_alive():
            return False
        try:
            with psycopg.connect(self._primary.dsn, autocommit=True) as connection:
                return bool(_value(connection, _FOLLOWS))
        except psycopg.Error:
            return False

    def kill(self) -> bool:
        """Not while a standby is being made of it."""
        if self._following.is_alive():
            return False
        self._primary.kill()
        self._primary.start()
        return True

    def promote(self) -> bool:
        standby = self._standby
        if standby is None:
            return False
        self._primary.kill()
        standby.promote()
        old, self._primary, self._standby = self._primary, standby, None
        old.__exit__()
        self._folders.reverse()
        self._following = threading.Thread(target=self._follow, name="standby", daemon=True)
        self._following.start()
        return True

    def close(self) -> None:
        self._stack.close()

    def _follow(self) -> None:
        """Make a standby in the other folder, and acknowledge nothing from then on that it does not have."""
        dsn = make_conninfo(self._primary.dsn, application_name=_STANDBY)
        self._standby = Postgres(self._folders[1], copy_of=dsn, settings=_PAIR_SETTINGS).__enter__()
        with psycopg.connect(self._primary.dsn, autocommit=True) as connection:
            connection.execute(f"alter system set synchronous_standby_names = '{_STANDBY}'".encode())
            connection.execute("select pg_reload_conf()")

    def _end(self) -> None:
        if self._following.ident is not None:
            self._following.join()
        for server in (self._standby, self._primary):
            if server is not None:
                server.__exit__()

    def _dismiss(self) -> None:
        assert self._watcher.stdin is not None  # noqa: S101
        self._watcher.kill()
        self._watcher.stdin.close()
        self._watcher.wait()


_FOLLOWS = "select exists (select from pg_stat_replication where state = 'streaming' and sync_state = 'sync')"


def _value(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None
