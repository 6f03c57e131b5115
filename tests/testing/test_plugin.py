"""The pytest plugin, as pytest loads it: each case is a small project that another pytest runs, with warnings as errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
APP = """
from faultline import Faultline

app = Faultline("postgresql://nowhere.invalid/production")


@app.task
def ship(item: str) -> str:
    return f"parcel with {item}"


@app.task
def remind(item: str) -> None: ...
"""
CONFTEST = """
import pytest
from shop import app


@pytest.fixture
def faultline_app():
    return app
"""


def run(folder: Path, dsn: str, files: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    # Loaded by name, also where the package was installed before it had an entry point.
    environment = {**os.environ, "FAULTLINE_TEST_DSN": dsn, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("FAULTLINE_DSN", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "faultline.pytest_plugin",
        "-W",
        "error",
        "--rootdir",
        str(folder),
    ]
    return subprocess.run(
        [*command, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def passed(ran: subprocess.CompletedProcess[str]) -> int:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.search(r"(\d+) passed", ran.stdout)
    return int(found[1]) if found else 0


def test_a_test_has_its_own_database_where_it_runs_jobs_and_moves_time(tmp_path: Path, dsn: str) -> None:
    tests = """
import pytest
from shop import app, remind, ship

FIRST = []


@pytest.mark.parametrize("item", ["lamp", "chair"])
def test_each(faultline, item):
    FIRST.append(faultline.dsn)
    ship.enqueue(item)
    faultline.assert_enqueued(ship, args={"item": item}, count=1)

    assert faultline.drain().succeeded == 1
    assert [(job.task, job.state, job.result) for job in faultline.jobs] == [("ship", "succeeded", f"parcel with {item}")]
    assert len(set(FIRST)) == len(FIRST)


def test_time(faultline):
    remind.options(delay=3600).enqueue("lamp")

    assert faultline.drain().succeeded == 0
    faultline.time.advance(3600)
    assert faultline.drain().succeeded == 1
    remind.options(delay=3600).enqueue("lamp")
    assert faultline.drain(advancing=True).succeeded == 1


def test_async(faultline):
    import asyncio

    async def main():
        async with app:
            await ship.aenqueue("lamp")
            return await faultline.adrain()

    assert asyncio.run(main()).succeeded == 1


def test_afterwards_the_application_names_its_own_database(faultline_app, request):
    jobs = request.getfixturevalue("faultline")
    assert faultline_app.dsn == jobs.dsn
    jobs.__exit__()
    assert faultline_app.dsn == "postgresql://nowhere.invalid/production"
"""
    ran = run(tmp_path, dsn, {"shop.py": APP, "conftest.py": CONFTEST, "test_shop.py": tests})

    assert passed(ran) == 5


def test_without_an_application_of_ones_own_there_is_an_empty_one(tmp_path: Path, dsn: str) -> None:
    tests = """
def test_it(faultline):
    @faultline.app.task
    def add(a: int, b: int) -> int:
        return a + b

    handle = add.enqueue(1, 2)
    faultline.drain()
    assert handle.result(timeout=5) == 3
"""
    assert passed(run(tmp_path, dsn, {"test_it.py": tests})) == 1


def test_databases_are_dropped_although_a_test_fails(tmp_path: Path, dsn: str) -> None:
    tests = """
from pathlib import Path

import psycopg


def test_it(faultline_database):
    Path("dsn").write_text(faultline_database)
    assert False


def test_gone(faultline_server):
    name = psycopg.conninfo.conninfo_to_dict(Path("dsn").read_text())["dbname"]
    with psycopg.connect(faultline_server) as connection:
        assert not connection.execute("select from pg_database where datname = %s", (name,)).fetchall()
"""
    ran = run(tmp_path, dsn, {"test_it.py": tests})

    assert "1 failed, 1 passed" in ran.stdout, ran.stdout


def test_a_plugin_that_is_not_used_imports_nothing(tmp_path: Path, dsn: str) -> None:
    tests = """
import sys


def test_it():
    heavy = {"psycopg", "orjson", "asyncio"} & set(sys.modules)
    loaded = heavy | {name for name in sys.modules if name.startswith("faultline.")}
    assert loaded == {"faultline.pytest_plugin"}
"""
    assert passed(run(tmp_path, dsn, {"test_it.py": tests})) == 1


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"faultline": "faultline.pytest_plugin"}


@pytest.mark.parametrize("section", ["A program with FastAPI"])
def test_the_recipes_of_the_page_run_as_they_are_printed(section: str, tmp_path: Path, dsn: str) -> None:
    pytest.importorskip("fastapi", reason="the recipe needs fastapi")
    pytest.importorskip("httpx", reason="FastAPI's TestClient needs httpx")
    page = (ROOT / "docs/how-to/testing.md").read_text()
    text = page.split(f"## {section}\n")[1].split("\n## ")[0]
    files = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))

    assert set(files) == {"shop.py", "conftest.py", "test_shop.py"}
    assert passed(run(tmp_path, dsn, files)) == 2
