"""No module imports itself by way of others, not even for its types: who reads one need not have read the other first."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import faultline

ROOT = Path(faultline.__file__).parent
#: A worker and the program that starts it still know each other.
LEFT = ("faultline.app", "faultline.worker")


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: set[str]) -> set[str]:
    """What a module imports when it is loaded, and what it names for its types. What a function imports when it is called is
    the way to break a circle at run time, and no part of it.
    """
    found: set[str] = set()
    late: set[int] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            late |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in late:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found |= {whole} if whole in known else {node.module} & known
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & known
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_goes_round_in_a_circle() -> None:
    known = modules()

    # A package's own module is no part of the graph: it only names what is below.
    graph = {name: imports(path, set(known)) - {name} for name, path in known.items() if path.name != "__init__.py"}
    graph = {name: found for name, found in graph.items() if not name.startswith(LEFT)}

    assert circle(graph) == []


def test_a_circle_is_noticed() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
