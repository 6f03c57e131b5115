"""The two stores: one PostgreSQL and one Redis, with the same settings for everybody, empty for each measurement."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from bench import install
from bench.catalog import PEERS
from bench.processes import Program, cpu_seconds, free_port, run, wait_for
from faultline import embedded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.catalog import System

_SETUP_SECONDS = 60
# fsync and synchronous_commit stay on, as they are by default. Room for the connections of 500 jobs at once.
SETTINGS = {"max_connections": "400"}
REDIS_SETTINGS = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


@dataclass(frozen=True, slots=True)
class Account:
    """What a store has done so far; two of them make a difference."""

    wal_bytes: float
    transactions: float
    cpu: float


class Store(Protocol):
    version: str
    settings: dict[str, str]

    def fresh(self, system: System, env: dict[str, str]) -> dict[str, str]:
        """Make an empty place for this system. Gives the environment that tells its programs of it."""

    def settle(self) -> None: ...
    def account(self) -> Account: ...
    def drop(self) -> None: ...


class Postgres:
    def __init__(self, folder: Path, dsn: str) -> None:
        self._folder = folder
        self._dsn = dsn
        self._templates: set[str] = set()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self.version = str(self._one("show server_version"))
        names = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "max_connections")
        self.settings = {name: str(self._one(f"show {name}")) for name in names}

    def fresh(self, system: System, env: dict[str, str]) -> dict[str, str]:
        """A copy of a database in which this system has made its tables."""
        self._reconnect()
        template = f"template_{system.key}"
        if template not in self._templates:
            self._create(template)
            log = PEERS / "log" / f"{system.key}-setup.log"
            run([*install.command(system), "setup"], {**env, **self._environment(template)}, log, _SETUP_SECONDS)
            self._templates.add(template)
        self.drop()
        self._create("bench", template)
        return self._environment("bench")

    def settle(self) -> None:
        """Nothing of the last measurement is left to be written, and full-page images begin anew for everybody alike."""
        self._connection.execute("checkpoint")

    def account(self) -> Account:
        wal, transactions = self._row(
            "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn,"
            " (select coalesce(sum(xact_commit), 0) from pg_stat_database where datname = 'bench')"
        )
        return Account(float(wal), float(transactions), self.cpu())

    def cpu(self) -> float:
        pid = embedded.status(self._folder).pid
        return cpu_seconds([pid]) if pid is not None else 0.0

    def drop(self) -> None:
        self._connection.execute("drop database if exists bench with (force)")

    def close(self) -> None:
        self._connection.close()

    def _reconnect(self) -> None:
        """A system that brought the server down must not take the ones after it along: the server comes back by itself."""
        for _ in range(30):
            try:
                self._connection.execute("select 1")
            except psycopg.OperationalError:
                time.sleep(1)
                with contextlib.suppress(psycopg.OperationalError):
                    self._connection = psycopg.connect(self._dsn, autocommit=True)
            else:
                return

    def _create(self, name: str, template: str = "template1") -> None:
        self._connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        self._connection.execute(
            sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        )

    def _environment(self, name: str) -> dict[str, str]:
        words = conninfo_to_dict(self._dsn)
        host, port, user = str(words["host"]), str(words["port"]), str(words["user"])
        return {
            "BENCH_DSN": f"postgresql://{user}@/{name}?host={quote(host, safe='')}&port={port}",
            "PGHOST": host,
            "PGPORT": port,
            "PGUSER": user,
            "PGDATABASE": name,
        }

    def _row(self, question: str) -> tuple[Any, ...]:
        row = self._connection.execute(question.encode()).fetchone()
        return row or ()

    def _one(self, question: str) -> Any:
        return self._row(question)[0]


class Redis:
    def __init__(self, program: Program, port: int, version: str) -> None:
        self._program = program
        self._port = port
        self.version = version
        self.settings = dict(zip(REDIS_SETTINGS[::2], REDIS_SETTINGS[1::2], strict=True))

    def fresh(self, system: System, env: dict[str, str]) -> dict[str, str]:  # noqa: ARG002 - there are no tables to make
        self.drop()
        return {"BENCH_REDIS": f"redis://127.0.0.1:{self._port}/0"}

    def settle(self) -> None:
        pass

    def account(self) -> Account:
        return Account(float("nan"), float("nan"), cpu_seconds([self._program.pid]))

    def drop(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), 10) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            connection.recv(100)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    folder = PEERS / "postgres"
    embedded.destroy(folder)
    try:
        with embedded.join(folder, settings=SETTINGS) as server:
            store = Postgres(folder, server.dsn)
            try:
                yield store
            finally:
                store.close()
    finally:
        embedded.destroy(folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def redis(tell: Callable[[str], None]) -> Iterator[Redis]:
    words, extra = install.redis_server(tell)
    port = free_port()
    with tempfile.TemporaryDirectory(dir=PEERS, prefix="redis-data-") as folder:
        command = [*words, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, *REDIS_SETTINGS]
        program = Program(command, {**os.environ, **extra}, PEERS / "log" / "redis.log")
        try:
            wait_for(lambda: _answers(port), 10, "redis-server does not answer")
            log = (PEERS / "log" / "redis.log").read_text()
            version = log.partition("Redis version=")[2].partition(",")[0]
            yield Redis(program, port, version)
        finally:
            program.stop()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
