"""The README tells the truth: its program runs and its SQL works, as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.driver import Driver

README = (Path(__file__).parents[1] / "README.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_program_runs_as_printed(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(block("python"))

    def run(*words: str) -> tuple[str, str]:
        environment = {**os.environ, "FAULTLINE_DSN": dsn}
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return ran.stdout, ran.stderr

    assert run("shop.py") == ("True\n{'paid': 142}\n", "")
    # What `faultline worker shop:app` does with it.
    assert run("-c", "import shop; print(list(shop.app.tasks))") == ("['charge']\n", "")


def test_the_sql_works_as_printed(queue: Driver) -> None:
    queue.connection.execute("create table orders (id integer, paid boolean)")
    queue.connection.execute("insert into orders values (42, false)")
    text = re.sub(r"--.*", "", block("sql")).replace("5 minutes", "0 minutes")
    enqueue, claim, *rest, look = [statement for statement in text.split(";") if statement.strip()]

    queue.connection.execute(enqueue.encode())
    job_id = queue.value(claim)
    for statement in rest:
        queue.connection.execute(statement.replace("…", str(job_id)).encode())

    assert queue.value(look.replace("…", str(job_id))) == "succeeded"
    assert queue.value("select paid from orders")
