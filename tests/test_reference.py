"""The documentation says what there is. `make reference` writes the tables of docs/reference anew."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import faultline
import faultline.testing
from tests import reference
from tests.words import check_words

if TYPE_CHECKING:
    from types import ModuleType

    from tests.driver import Driver

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("name", list(reference.PARTS))
def test_the_reference_lists_what_the_code_has(name: str) -> None:
    assert reference.part(name) == reference.PARTS[name](), "run: make reference"


def test_the_reference_lists_the_functions_of_the_catalogue(queue: Driver) -> None:
    assert reference.part("verbs") == reference.sql_verbs(queue.connection), "run: make reference"


@pytest.mark.parametrize(("page", "module"), [("python.md", faultline), ("testing.md", faultline.testing)])
def test_every_public_name_is_documented(page: str, module: ModuleType) -> None:
    """Sphinx fills in what a class or function says of itself; a name that no directive names has no place at all."""
    named = re.findall(
        rf"\.\. auto\w+:: {re.escape(module.__name__)}\.(\w+)$", (reference.PAGES / page).read_text(), re.MULTILINE
    )

    assert sorted(named) == sorted(module.__all__), f"docs/reference/{page} needs one directive for each name"


def test_every_metric_that_is_named_anywhere_exists() -> None:
    """In the documentation, in alerts, in the dashboard: a name that nobody tells alerts nobody."""
    known = set()
    for family in reference.metrics():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count", ""]}.get(family.type, [""])
        known |= {family.name + end for end in ends}
    # Roles, packages, databases, commands of Django, fixtures. The end of a name may be left to the reader: faultline_jobs_…
    roles = ("faultline_producer", "faultline_worker", "faultline_viewer", "faultline_operator", "faultline_owner")
    named_so = ("faultline_proof", "faultline_test", "faultline_template", "faultline_scratch_", "faultline_migrate")
    others = (*roles, *named_so, "faultline_app", "faultline_server")
    places = [*DOCUMENTS, *(ROOT / "deploy").rglob("*.yml"), *(ROOT / "deploy").rglob("*.json")]

    named = {(place.name, word) for place in places for word in re.findall(r"\bfaultline_[a-z_]+", place.read_text())}
    wrong = {
        (place, word)
        for place, word in named
        if not word.startswith(others) and word not in known and not any(name.startswith(word) for name in known)
    }

    assert {word for _, word in named} & known
    assert wrong == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_line_in_the_documentation_can_be_typed(document: Path) -> None:
    for line in re.findall(r"(?m)^(?:\$ )?(?:[A-Z_]+=\S+ )*faultline (.*)$", document.read_text()):
        words = shlex.split(line, comments=True)
        # Where the command ends and the shell goes on.
        stops = [place for place, word in enumerate(words) if word in ("|", "&&", "&", ">", ";", "||")]
        check_words(words[: min(stops, default=len(words))])
