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
from tests.web.conftest import QUICK, running

if TYPE_CHECKING:
    from tests.driver import Driver


@pytest.mark.long
def test_schemathesis_finds_nothing(dsn: str, db: Driver, tmp_path: Path) -> None:
    """Every path and every check. A 503 of /ready would be what it is for, so there is a worker that stays alive."""
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
                "8",
                "--seed",
                "1",
                # What they refuse beyond the schema (numbers of calls, texts that cannot be stored) is tested in test_flows.
                "--exclude-path-regex",
                "signals|stream|fork|waiting|flow",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
            cwd=tmp_path,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path)},
        )

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
