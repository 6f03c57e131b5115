"""The page on moving from Celery cannot drift: every program of it is run, on a real database."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.celery import of_flows, of_tasks, of_workers  # noqa: F401 - they register their checks
from tests.celery.page import CHECKS, Scene, anchor, blocks, listed, programs, titles

if TYPE_CHECKING:
    from pathlib import Path

    from faultline import Faultline
    from tests.driver import Driver


#: They start processes and kill them.
LONG = ("Late acknowledgement", "Pools and prefetch")


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.long if title in LONG else ()) for title in titles()]
)
def test_the_program_does_what_the_page_says(
    title: str, app: Faultline, queue: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    CHECKS[title](Scene(title, app, queue, monkeypatch, tmp_path))


def test_the_table_of_contents_names_every_construct() -> None:
    assert listed() == list(enumerate(map(anchor, titles()), start=1))
    assert len(listed()) >= 25
    assert set(CHECKS) == set(titles())


@pytest.mark.parametrize("title", titles())
def test_both_sides_are_shown_and_are_short(title: str) -> None:
    (language, theirs), *_ = blocks(title)
    assert theirs.startswith("# Celery\n")
    if language == "python":
        ast.parse(theirs)

    assert programs(title)
    assert max(len(program.splitlines()) for program in programs(title)) <= 25
