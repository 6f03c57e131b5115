"""The documentation says what there is: commands, names, paths, functions, events. `make reference` writes the tables anew."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import reference
from tests.words import check_words

if TYPE_CHECKING:
    from tests.driver import Driver

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("name", list(reference.PARTS))
def test_the_reference_lists_what_the_code_has(name: str) -> None:
    assert reference.part(name) == reference.PARTS[name](), "run: make reference"


def test_the_reference_lists_the_functions_of_the_catalogue(queue: Driver) -> None:
    assert reference.part("verbs") == reference.sql_verbs(queue.connection), "run: make reference"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_line_in_the_documentation_can_be_typed(document: Path) -> None:
    for block in re.findall(r"```(?:sh|console|bash)?\n(.*?)```", document.read_text(), re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if "faultline " in line else []
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words[:1] == ["faultline"]:
                check_words([word for word in words[1 : _end(words)]])


def _end(words: list[str]) -> int:
    """Where the command ends and the shell goes on."""
    stops = [place for place, word in enumerate(words) if word in ("|", "&&", "&", ">", ";", "||")]
    return min(stops, default=len(words))
