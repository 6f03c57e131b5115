"""The README tells the truth: its program runs under its worker command. So does the SQL of the page on other languages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_build import LINK, published

if TYPE_CHECKING:
    from tests.driver import Driver

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SQL = (ROOT / "docs/how-to/other-languages.md").read_text()


def block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_program_runs_under_the_worker_command_as_printed(queue: Driver, dsn: str, tmp_path: Path) -> None:
    queue.connection.execute("create table orders (id integer, paid boolean)")
    queue.connection.execute("insert into orders values (42, false)")
    (tmp_path / "shop.py").write_text(block(README, "python"))
    (command,) = re.findall(r"^\$ (faultline worker .*)", README, re.MULTILINE)
    environment = {**os.environ, "FAULTLINE_DSN": dsn, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    worker = subprocess.Popen(shlex.split(command), cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        enqueue = "from shop import charge; charge.enqueue(42).result(timeout=60)"
        subprocess.run([sys.executable, "-c", enqueue], cwd=tmp_path, env=environment, check=True)
    finally:
        worker.terminate()
        told = worker.communicate()[1]

    assert worker.returncode == 0, told
    assert queue.value("select paid from orders")


def test_the_sql_works_as_printed(queue: Driver) -> None:
    queue.connection.execute("create table orders (id integer, paid boolean)")
    queue.connection.execute("insert into orders values (42, false)")
    text = re.sub(r"--.*", "", block(SQL, "sql")).replace("5 minutes", "0 minutes")
    enqueue, claim, *rest, look = [statement for statement in text.split(";") if statement.strip()]

    queue.connection.execute(enqueue.encode())
    job_id = queue.value(claim)
    for statement in rest:
        queue.connection.execute(statement.replace("…", str(job_id)).encode())

    assert queue.value(look.replace("…", str(job_id))) == "succeeded"
    assert queue.value("select paid from orders")


def test_the_readme_fits_a_terminal() -> None:
    assert [line for line in README.splitlines() if len(line) > 100] == []


def test_links_and_pictures_work_where_the_package_is_published() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    printed = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata", "readme"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert printed.strip() == published(README, source).strip()
    assert LINK.findall(printed) == []
    within = re.findall(rf"{re.escape(source)}/(?:blob|raw)/main/([^)\s#]+)", printed)
    assert len(within) >= len(LINK.findall(README))
    assert [path for path in within if not (ROOT / path).exists()] == []
