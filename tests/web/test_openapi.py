"""The description at /openapi.json is complete: who reads nothing else finds no answer that it does not foresee."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.web.conftest import Api


def test_schemathesis_finds_nothing(api: Api, tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"),
            "run",
            f"{api.address}/openapi.json",
            "--header",
            f"Authorization: Bearer {api.key}",
            "--exclude-path",
            "/api/v1/events",  # it never ends
            "--exclude-path",
            "/ready",  # a 503 is what it is for
            "--exclude-checks",
            "positive_data_acceptance",  # not every text is a cursor
            "--max-examples",
            "8",
            "--seed",
            "1",
            "--workers",
            "2",
            "--no-color",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path)},
    )

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
