"""The pages on moving from another system cannot drift: every program of them is run, on a real database."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tests.moving import of_flows, of_tasks, of_workers  # noqa: F401 - they register their checks
from tests.moving.page import CHECKS, PAGES, Page, Scene, anchor

if TYPE_CHECKING:
    from pathlib import Path

    from faultline import Faultline
    from tests.driver import Driver


#: They start processes and kill them.
LONG = ("Late acknowledgement", "Pools and prefetch", "Stalled jobs")
CONSTRUCTS = [
    pytest.param(page, title, id=f"{page.name}: {title}", marks=pytest.mark.long if title in LONG else ())
    for page in PAGES.values()
    for title in page.titles
]


@pytest.mark.parametrize(("page", "title"), CONSTRUCTS)
def test_the_program_does_what_the_page_says(
    page: Page, title: str, app: Faultline, queue: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    CHECKS[page.name, title](Scene(page, title, app, queue, monkeypatch, tmp_path))


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_table_of_contents_names_every_construct(page: Page) -> None:
    assert page.listed == list(enumerate(map(anchor, page.titles), start=1))
    assert len(page.listed) >= 10
    assert {title for name, title in CHECKS if name == page.name} == set(page.titles)


@pytest.mark.parametrize(("page", "title"), CONSTRUCTS)
def test_both_sides_are_shown_and_are_short(page: Page, title: str) -> None:
    (language, theirs), *_ = page.blocks(title)
    assert theirs.startswith(f"# {page.theirs}\n")
    if language == "python":
        ast.parse(theirs)

    assert page.programs(title)
    assert max(len(program.splitlines()) for program in page.programs(title)) <= 25
