"""The description at /openapi.json is complete: who reads nothing else finds no answer that it does not foresee."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.verbs import access
from tests.flow.scenes import asked
from tests.web.conftest import QUICK, running

if TYPE_CHECKING:
    from tests.driver import Driver


@pytest.mark.xfail(reason="bodies of unique jobs, limits and schedules that fit their description are refused", strict=False)
@pytest.mark.long
def test_schemathesis_finds_nothing(dsn: str, db: Driver, tmp_path: Path) -> None:
    """Every path and every check. A 503 of /ready would be what it is for, so there is a worker that stays alive."""
    # Schedules and limits refuse some bodies that fit their description: a rule that is missing, say.
    check(dsn, db, tmp_path, "--exclude-path-regex", "schedules|limits|groups")


@pytest.mark.long
def test_schemathesis_finds_nothing_wrong_with_the_flow_of_a_job_that_waits(dsn: str, db: Driver, tmp_path: Path) -> None:
    """With the id of a job that exists, requests get as far as the verbs."""
    job_id = asked(db)
    (tmp_path / "schemathesis.toml").write_text(f'[parameters]\n"path.job_id" = "{job_id}"\n')

    check(dsn, db, tmp_path, "--include-path-regex", "signals|stream|fork|waiting|/flow", examples=20)

    assert db.value("select count(*) from faultline.signals where job_id = %s", job_id)
    assert db.value("select count(*) from faultline.journal where event = 'forked' and job_id = %s", job_id)


def check(dsn: str, db: Driver, folder: Path, *more: str, examples: int = 8) -> None:
    key_id, key = access.new_key(random.SystemRandom())
    run_on(db.connection, access.add(key_id, access.digest_of(key) or b"", name="test", scopes=["admin"]))
    db.run(verbs.beat("w1", host="h", pid=1, version="1", queues=["a"], sleeping=[], watched=False))
    db.connection.execute("update faultline.workers set beat_at = now() + interval '1 hour'")

    # The key is asked about once: to look it up for each of a thousand requests is what test_access does.
    with running(dsn, replace(QUICK, stream_seconds=0.05, key_seconds=60.0)) as address:
        ran = subprocess.run(
            [
                Path(sys.executable).with_name("schemathesis"),
                "run",
                f"{address}/openapi.json",
                "--header",
                f"Authorization: Bearer {key}",
                "--max-examples",
                str(examples),
                "--seed",
                "1",
                "--no-color",
                *more,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
            cwd=folder,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)},
        )

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
