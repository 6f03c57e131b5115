"""One word per idea, and plain English where users read: no retired word comes back. See docs/reference/vocabulary.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/faultline"
VOCABULARY = ROOT / "docs/reference/vocabulary.md"

#: Retired in what users see: messages, help, descriptions, pages, alerts. Pattern → what to say instead.
PHRASES = {
    r"\bcan not\b": "cannot",
    r"\bhas not the\b": "lacks the",
    r"\b(this|it|that|which) is no (?!longer)": "invalid, is not a",
    r"\bredriv": "retry failed",
    r"\bt(aken?|ook|akes) back\b": "reap",
    r"\bg(iven?|ave|ives) back\b": "release",
    r"\bhand(s|ed)? in\b": "enqueue",
    r"\bgrants? (no|only|jobs)\b": "claim",
    r"\bsubmit (a job|jobs|to)\b": "enqueue",
    r"\bfor good\b": "leave it out",
    r"\bfor ever\b": "forever, never",
    r"\br[ua]ns? out\b": "expire",
    r"\bwhoever\b": "name who",
    r"\bnobody's\b": "say whose",
    r"\b(is|are|was|were) told\b": "is shown, is logged",
    r"\bmends?\b": "repair",
    r"\banswers (with|whether)\b": "returns",
    r"\bof the dead\b": "whose worker died",
    r"\bon record\b": "recorded",
    r"\bmakes no sense\b": "is invalid",
    r"\bended badly\b": "failed or was cancelled",
    r"\banother chance\b": "retry",
    r"\bbound to (no )?queues?\b": "restricted to queues",
    r"\b(start|take|taken|many) in a time\b": "in a given time, per period",
    r"\bto be restarted\b": "for a restart",
}  # fmt: skip

#: Retired as names of functions, classes, parameters, fields and variables. Name → the word that stays.
NAMES = {
    "because": "reason",
    "paused_because": "paused_reason",
    "redrive": "retry_failed",
    "retried_per_second": "rescheduled_per_second",
    "trouble": "incident, losses",
    "troubles": "incidents",
    "Trouble": "Incident, Losses",
    "lane": "feed",
}  # fmt: skip

#: Retired as parts of names (`place_of`, `PlacedJobs`, the module `place`). Pattern → the words that stay.
PARTS = {
    r"settle[ds]?": "written, completed, ended",
    r"(un)?placed?|places": "position, cursor, slot, folder",
    r"told|tells?|teller": "logged, reported, notified",
    r"g(ives?|iven|ave|iving)_back": "release",
    r"t(akes?|aken|ook|aking)_back": "reap, restore",
    r"granted_(to|at)": "claimed",
    r"troubles?": "incident, failure",
}  # fmt: skip
#: The folders that have none of them.
PLAIN = (
    "core", "store", "history", "attempt", "flow", "app", "worker", "operate", "doctor", "explain", "integrations",
    "web", "cli", "embedded", "testing",
)  # fmt: skip

#: Where a retired name stays, and why.
KEPT_NAMES = {
    ("explain/", "lane"): "a lane is the drawing of an epoch",
    ("cli/commands/up.py", "trouble"): "the option --trouble, which people know",
}  # fmt: skip

#: Retired as names of variables, aliases and columns in SQL.
SQL_NAMES = {
    "because": "reason",
    "place": "position",
    "places": "positions, ctids",
    "placed": "inserted",
    "told": "logged, woken",
    "told_before": "woken_before",
    "granted": "claimed",
    "settled": "ended",
}  # fmt: skip

#: Parameters and columns of functions that have the retired word.
KEPT_SQL_NAMES = {
    *((function, "place") for function in ("new_id", "reject_job", "place_known", "enqueue_many")),
    ("read_jobs", "place"), ("place_known", "placed"), ("enqueue_many", "placed"),
}  # fmt: skip


def test_what_users_see_has_no_retired_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: say {better!r}: {text.strip()[:90]}"
        for path, line, text in [*_messages(), *_pages(), *_refusals(), *_alerts()]
        for phrase, better in PHRASES.items()
        if re.search(phrase, text, re.IGNORECASE)
    ]

    assert found == []


def test_no_name_is_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}, say {NAMES[name]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in _names(path)
        if name in NAMES and not any(where in str(path) and name == kept for where, kept in KEPT_NAMES)
    ]

    assert sorted(set(found)) == []


def test_no_name_in_sql_is_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}, say {SQL_NAMES[name]}"
        for path in sorted((PACKAGE / "schema").rglob("*.sql"))
        if path.parent.name != "migrations"
        for line, text in enumerate(path.read_text().splitlines(), start=1)
        for name in re.findall(r"\w+", re.sub(r"'[^']*'|--.*", "", text))
        if name in SQL_NAMES
    ]

    assert found == []


def test_no_part_of_a_name_is_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}, say {better}"
        for folder in PLAIN
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for line, name in [*_names(path), (1, path.stem)]
        for part, better in PARTS.items()
        if re.search(rf"(^|_)({part})(_|$)", _snake(name))
        and not any(where in str(path) and name == kept for where, kept in KEPT_NAMES)
    ]

    assert sorted(set(found)) == []


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def test_an_idea_stands_once_in_the_vocabulary() -> None:
    nouns = VOCABULARY.read_text().partition("## Nouns")[2].partition("## ")[0]
    words = [word.strip() for line in re.findall(r"^\| ([^|]+) \|", nouns, re.MULTILINE) for word in line.split(",")]

    assert [word for word in words if words.count(word) > 1] == []


def test_every_retired_word_stands_in_the_vocabulary() -> None:
    retired = VOCABULARY.read_text().partition("## Retired words")[2]

    missing = [name for name in NAMES if name.lower().partition("_")[0].removesuffix("s") not in retired.lower()]
    assert missing == []


def _messages() -> Iterator[tuple[Path, int, str]]:
    """Every text of the code but SQL, and but docstrings that neither help nor the reference shows."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        shown = path.parent.name in ("cli", "app", "testing", "operate") or path.name in ("errors.py", "shapes.py")
        inner = set() if shown else {id(one) for one in _docstrings(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                is_sql = re.search(r"\b(select|insert|update|from) \S", node.value)
                if " " in node.value and not is_sql:
                    yield path, node.lineno, node.value


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _pages() -> Iterator[tuple[Path, int, str]]:
    for path in [*sorted((PACKAGE / "web/templates").glob("*.html")), PACKAGE / "web/static/live.js"]:
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            yield path, line, text


def _refusals() -> Iterator[tuple[Path, int, str]]:
    """What the database raises: the quoted texts of its functions and guards."""
    for path in sorted((PACKAGE / "schema").rglob("*.sql")):
        if not path.name[0].isdigit():
            for line, text in enumerate(path.read_text().splitlines(), start=1):
                for quoted in re.findall(r"'([^']{12,})'", text.partition("--")[0]):
                    yield path, line, quoted


def _alerts() -> Iterator[tuple[Path, int, str]]:
    for path in (ROOT / "deploy/prometheus/alerts.yml", ROOT / "deploy/grafana/faultline.json"):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            yield path, line, text


def _names(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name
