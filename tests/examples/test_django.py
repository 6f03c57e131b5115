"""The Django project: its own tests pass, and `manage.py` runs its tasks in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PROJECT = Path(__file__).parents[2] / "examples/django_shop"
PATIENCE = 120.0
ORDER = (
    "import json; from django.test import Client; c = Client(); a = c.post('/orders?item=lamp').json(); print(json.dumps(a))"
)


def command(*words: str) -> list[str]:
    return [sys.executable, "manage.py", *words]


def manage(dsn: str, *words: str) -> str:
    environment = {**os.environ, "FAULTLINE_DSN": dsn}
    ran = subprocess.run(
        command(*words), cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_its_own_tests_pass_with_a_real_worker(dsn: str) -> None:
    assert "\nOK" in manage(dsn, "test")


def test_migrate_installs_the_schema_and_the_worker_command_runs_tasks_until_it_is_told_to_stop(empty_dsn: str) -> None:
    assert "Faultline: migrated" in manage(empty_dsn, "migrate")
    answer = json.loads(manage(empty_dsn, "shell", "-v", "0", "-c", ORDER).splitlines()[-1])

    with subprocess.Popen(
        command("faultline_worker", "--queue", "default", "--queue", "mail=5"),
        cwd=PROJECT,
        env={**os.environ, "FAULTLINE_DSN": empty_dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        said: list[str] = []
        give_up = time.monotonic() + PATIENCE
        for line in worker.stdout:
            said.append(line)
            if "is on its way" in line or time.monotonic() > give_up:
                break
        worker.send_signal(signal.SIGTERM)
        said += worker.stdout.readlines()

    assert f"order {answer['order']} is on its way\n" in said, "".join(said)
    assert worker.returncode == 0, "".join(said)
    state = manage(empty_dsn, "faultline", "job", answer["task"])
    assert "succeeded" in state
    assert "shop.tasks.ship" in state


def test_the_page_about_django_shows_the_project_as_it_is() -> None:
    page = (PROJECT.parents[1] / "docs/how-to/django.md").read_text()
    blocks = re.findall(r"```python\n# (shop/\w+\.py)\n(.*?)```", page, re.DOTALL)

    assert len(blocks) == 9
    for name, block in blocks:
        assert block in (PROJECT / name).read_text(), f"{name} has another text than docs/how-to/django.md:\n{block}"
