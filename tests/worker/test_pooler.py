"""Behind a transaction-mode pooler: no session of one's own, so no LISTEN and no lock; polling alone does it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline import Faultline, Job
from faultline.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.driver import Driver

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@pytest.fixture
def pooled_dsn(dsn: str) -> Iterator[str]:
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed (apt-get install pgbouncer)")
    server = conninfo_to_dict(dsn)
    folder = Path(tempfile.mkdtemp(prefix="flpool-", dir="/tmp"))  # short enough for a socket, open to the pooler's user
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0:
        shutil.chown(folder, user)
    (folder / "users.txt").write_text(f'"{server["user"]}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={server['host']} port={server['port']}\n[pgbouncer]\npool_mode = transaction\n"
        f"listen_addr =\nlisten_port = 6432\nunix_socket_dir = {folder}\nauth_type = trust\nauth_file = {folder}/users.txt\n"
        f"default_pool_size = 5\nlogfile = {folder}/log\npidfile = {folder}/pid\n"
    )
    words = ["-u", user] if os.geteuid() == 0 else []
    process = subprocess.Popen([PGBOUNCER, "-q", *words, str(folder / "pgbouncer.ini")], stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 10
        while not (folder / ".s.PGSQL.6432").exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < give_up
        yield make_conninfo(dsn, host=str(folder), port=6432)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


def test_jobs_run_and_leases_are_kept_behind_a_pooler(pooled_dsn: str, queue: Driver) -> None:
    with Faultline(pooled_dsn) as app:

        @app.task(lease=2)
        async def slow(job: Job, n: int) -> int:
            await job.progress(n)
            async with job.transaction() as tx:
                await tx.execute("select 1")
            await asyncio.sleep(3 if n == 0 else 0)
            return job.fencing_token

        async def story() -> list[int]:
            async with asyncio.timeout(30), app.worker({"default": 20}):
                handles = await app.aenqueue_many(slow.bind(n) for n in range(50))
                found = await asyncio.gather(*(handle.aresult(30) for handle in handles))
            await app.aclose()
            return found

        assert asyncio.run(story()) == [1] * 50
    ours = "database = (select oid from pg_database where datname = current_database())"
    assert queue.value(f"select count(*) from pg_locks where locktype = 'advisory' and {ours}") == 0


def test_a_pooler_is_recognised(pooled_dsn: str) -> None:
    with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=None) as connection:
        row = connection.execute("select pg_backend_pid()").fetchone()

        assert row is not None
        assert row[0] != connection.info.backend_pid


def test_nothing_is_prepared_behind_a_pooler(pooled_dsn: str) -> None:
    with contextlib.closing(Database(pooled_dsn)) as database, database.connection() as connection:
        assert connection.prepare_threshold is None
