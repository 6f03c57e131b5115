"""Which build this is: the same however it was installed, and another one when a byte of code or schema is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import faultline
from faultline.core import build
from tests.cli.commands import faultline as command

PACKAGE = Path(faultline.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGE, tmp_path / "faultline", ignore=shutil.ignore_patterns("__pycache__")))


def test_a_copy_is_the_same_build(copy: Path) -> None:
    assert build.digest(copy) == build.digest(PACKAGE)


@pytest.mark.parametrize("name", ["worker/claim/feed.py", "schema/lease/claim.sql"])
def test_another_text_is_another_build(copy: Path, name: str) -> None:
    (copy / name).write_text((copy / name).read_text() + "\n")

    assert build.digest(copy) != build.digest(PACKAGE)


def test_a_file_under_another_name_is_another_build(copy: Path) -> None:
    (copy / "schema/views.sql").rename(copy / "schema/view.sql")

    assert build.digest(copy) != build.digest(PACKAGE)


def test_the_command_line_says_which_build_it_is() -> None:
    asked = command("--version")
    by_module = subprocess.run([sys.executable, "-m", "faultline", "--version"], capture_output=True, text=True, check=True)

    assert asked.stdout == by_module.stdout == f"faultline {build.version()}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{8}", build.version())
