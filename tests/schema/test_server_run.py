"""The name of a run of the server changes whenever all its sessions have ended, and only then."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from faultline_proof.postgres import Postgres
from tests import servers

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = {"fsync": "off"}


@pytest.fixture(autouse=True)
def programs(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if server != servers.DEFAULT:
        monkeypatch.setenv("FAULTLINE_PG_BIN", str(servers.programs()[server]))


def run_of(postgres: Postgres) -> str:
    """A server that is just coming up again is waited for."""
    give_up = time.monotonic() + 20
    while True:
        try:
            with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                row = connection.execute("select faultline.server_run()").fetchone()
                assert row is not None
                return str(row[0])
        except psycopg.OperationalError:
            assert time.monotonic() < give_up


def write(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("update faultline.settings set token_floor = token_floor")
        connection.execute("checkpoint")


def crash_a_session(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as victim, psycopg.connect(postgres.dsn) as other:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            other.execute("select pg_sleep(20)")


@pytest.mark.long
def test_a_run_of_the_server_ends_with_its_sessions(tmp_path: Path) -> None:
    with Postgres(tmp_path / "primary", settings=_SETTINGS) as primary:
        runs = [run_of(primary)]
        write(primary)
        assert run_of(primary) == runs[0]

        for end in (crash_a_session, crash_a_session):
            end(primary)
            runs.append(run_of(primary))
            write(primary)
            assert run_of(primary) == runs[-1]

        with Postgres(tmp_path / "standby", copy_of=primary.dsn, settings=_SETTINGS) as standby:
            primary.kill()
            standby.promote()
            runs.append(run_of(standby))
            write(standby)
            assert run_of(standby) == runs[-1]

            standby.kill()
            standby.start()
            runs.append(run_of(standby))

    assert len(set(runs)) == len(runs) == 5
