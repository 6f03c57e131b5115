"""The house rules that no linter knows. A rule that matters is a test."""

from __future__ import annotations

import ast
import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from faultline.store.install import schema_text
from tools import blocking

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for root in ("src", "proof/src") for path in (ROOT / root).rglob("*.py"))
SQL = sorted((ROOT / "src").rglob("*.sql"))
VAGUE = re.compile(r"(manager|helper|utils?|handler|data|info)s?$")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_every_module_opens_with_what_it_is_for() -> None:
    silent = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def test_every_sql_file_says_what_it_is_for() -> None:
    silent = [path for path in SQL if not path.read_text().startswith("-- ")]

    assert silent == []


def test_modules_fit_one_sitting() -> None:
    """Those of the tests and the tools as well."""
    assert [path for path in tracked() if path.suffix == ".py" and len(path.read_text().splitlines()) > 700] == []


def test_functions_fit_a_screen() -> None:
    too_long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > 50:
                    too_long.append(f"{path.name}:{node.name} ({length})")

    assert too_long == []


def test_functions_in_sql_are_lists_of_steps() -> None:
    """Counted from the first line of the body: a long signature hides nothing."""
    too_long = []
    for path in SQL:
        for name, body in re.findall(
            r"function faultline\.(\w+)\(.*?as (\$\w*\$.*?^\$\w*\$)", path.read_text(), re.DOTALL | re.MULTILINE
        ):
            if body.count("\n") > 100:
                too_long.append(f"{name} ({body.count(chr(10))})")

    assert too_long == []


def module_of(path: Path) -> str:
    name = ".".join(
        path.relative_to(ROOT / ("src" if (ROOT / "src") in path.parents else "proof/src")).with_suffix("").parts
    )
    return name.removesuffix(".__init__")


def imported_by(path: Path, known: set[str]) -> set[str]:
    """All that it imports, late ones and those for types alone among them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                found.add(name if name in known else node.module)
    # To import a.b runs a first, unless this module stands in a itself.
    own = module_of(path)
    packages = {name.rpartition(".")[0] for name in found & known}
    return (found | {name for name in packages if not f"{own}.".startswith(f"{name}.")}) & known - {own}


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = {module_of(path) for path in SOURCES}
    graph = {module_of(path): imported_by(path, known) for path in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imported by ".join(error.args[1]))


def test_no_name_says_nothing() -> None:
    names = [path.stem for path in SOURCES]
    for path in SOURCES:
        names += [node.name.lower() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]

    assert [name for name in names if VAGUE.search(name)] == []


def test_sql_stands_in_the_schema_and_the_store_only() -> None:
    """The benchmark may fill tables by hand, and who judges the protocol must not ask it: both in scratch databases."""
    allowed = {"faultline/store", "faultline/embedded"}
    statement = re.compile(r"\b(select|insert into|update|delete from)\b[^\n]*\bfaultline\.", re.IGNORECASE)
    strays = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if "/".join(path.relative_to(ROOT / "src").parts[:2]) not in allowed and statement.search(path.read_text())
    ]

    assert strays == []


def test_a_verb_has_a_file_named_like_it_and_its_steps_stand_once() -> None:
    schema = ROOT / "src/faultline/schema"
    steps: list[str] = []
    for path in SQL:
        folders = path.relative_to(schema).parent.parts
        names = [function.name for function in schema_text.functions_in(path.read_text())]
        if "internal" in folders:
            steps += names
        elif folders and folders[0] not in ("migrations", "invariants"):
            assert names == [path.stem], path

    assert sorted(set(steps)) == sorted(steps)


def test_every_function_in_sql_says_what_it_is_for() -> None:
    silent = [
        function.name
        for path in SQL
        for function in schema_text.functions_in(path.read_text())
        if not function.text.startswith("-- ") and path.name != "guards.sql"  # the triggers below them say it
    ]

    assert silent == []


def test_verbs_for_batches_find_the_rows_of_leases_by_the_same_words() -> None:
    """One that compared less than the others would accept a stale write; one that locked otherwise could deadlock."""
    texts = {path.stem: path.read_text().replace(f"{path.stem}.", "verb.") for path in SQL if path.parent.name == "lease"}
    held = re.compile(r"    from unnest\(verb\.job_ids.*?skip locked\n  \),\n", re.DOTALL)
    found = {held.findall(texts[verb])[0] for verb in ("renew", "record_start", "fail", "release")}
    compared = ("j.id = any (array[l.job_id])", "j.fencing_token = l.token and j.lease_owner = l.owner")

    assert len(found) == 1, found
    assert all(words in text for words in compared for text in (*found, texts["complete"]))


def test_every_verb_has_a_test_and_a_place_in_the_documentation() -> None:
    guarantees = (ROOT / "docs/explanation/guarantees.md").read_text()
    named_tests = re.findall(r"`((?:tests|proof)/[\w/]+\.py)::(\w+)`", guarantees)

    assert named_tests
    for file, name in named_tests:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name} is promised in guarantees.md and missing"


@pytest.mark.parametrize(("generated", "source"), blocking.GENERATED.items(), ids=lambda path: path.name)
def test_the_blocking_side_is_what_the_async_side_gives(generated: Path, source: Path) -> None:
    assert generated.read_text() == blocking.blocking(source, later=generated.name == "deferred_calls.py"), (
        f"{generated.name} is stale; run: make generate"
    )


def test_the_project_speaks_of_itself_alone() -> None:
    registries = ("pypi" + ".org", "python" + "hosted.org", "debian" + ".org", "npmjs" + ".org")
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for address in registries:
            assert address not in text, f"{path} names a package registry"
        assert "/wo" + "rk/" not in text, f"{path} names a path of one machine"


def test_every_decision_has_a_date_and_a_line_in_the_list() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- (\S+) \[.*\]\((.*)\)$", (folder / "index.md").read_text(), re.MULTILINE)

    assert sorted(name for _, name in listed) == sorted(path.name for path in folder.glob("*.md") if path.name != "index.md")
    for date, name in listed:
        assert name.startswith(f"{date}-")
        assert f"\n*{date}*" in (folder / name).read_text()


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    """The build of the documentation checks the links of docs/."""
    for path in [*ROOT.glob("*.md"), ROOT / "bench/README.md"]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_no_wrapped_line_of_the_documentation_becomes_a_list() -> None:
    """`… as one with` / `1. So there must be …` is shown as a paragraph and a list."""
    item = re.compile(r"(1[.)]|[-+*]) ")
    found = []
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        code, before = False, ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            inside = re.match(r"[\w*`\[(]", before) and not re.match(r"(\d+[.)]|[-+*]) ", before)
            # A list may follow at once on a line that announces it.
            if not code and item.match(line) and inside and not before.endswith(":"):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line}")
            before = line

    assert found == []
