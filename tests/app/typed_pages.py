"""The programs of how-to pages, as files for type checkers: with what the pages take as given, and nothing else."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

import faultline
from tests.app.test_typing import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: Each block of these is a program of its own.
APART = ("celery", "limits", "schedules", "unique")
#: The blocks of these are one program.
WHOLE = ("batches", "cpu-bound", "hooks", "observability", "types")

#: What the pages take as given, by the name.
GIVEN = {
    "alert": "def alert(text: str) -> None: ...",
    "ask": "async def ask(text: str) -> str: return text",
    "bank": """
        class bank:
            @staticmethod
            def charge(order_id: int) -> None: ...
        """,
    "Client": """
        class Client:
            def get(self, url: str) -> int: return 200
            def close(self) -> None: ...
        """,
    "count": "def count(text: str) -> None: ...",
    "count_tokens": "def count_tokens(text: str) -> int: return len(text)",
    "digest": """
        @app.task
        def digest(user: int) -> None: ...
        """,
    "draw": 'async def draw(page: int) -> str: return ""',
    "load": "async def load(text: str) -> {returns}: return {returns}()",
    "model": """
        class model:
            @staticmethod
            async def embed(texts: list[str]) -> list[list[float]]: return []
        """,
    "provider": """
        class provider:
            @staticmethod
            def report(report_id: int) -> str: return ""
            @staticmethod
            def send(to: str) -> None: ...
        """,
}


def programs() -> dict[str, str]:
    """By the names of their files."""
    found: dict[str, str] = {}
    for page in (*APART, *WHOLE):
        text = (ROOT / f"docs/how-to/{page}.md").read_text()
        ours = [block for block in re.findall(r"^```python\n(.*?)```", text, re.DOTALL | re.MULTILINE) if is_program(block)]
        parts = ours if page in APART else ["\n".join(ours)]
        for number, part in enumerate(parts, start=1):
            found[f"page_{page.replace('-', '_')}_{number}"] = with_given(part)
    return found


def is_program(block: str) -> bool:
    """Not a piece of a task, and not Celery's."""
    if block.startswith("# Celery"):
        return False
    try:
        compile(block, "page", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def with_given(block: str) -> str:
    """The program after its imports, its application and what else the page takes as given."""

    def lacks(name: str) -> bool:
        made = rf"^(?:{name} = |(?:async )?def {name}\b|class {name}\b|.*\bimport .*\b{name}\b)"
        used = re.search(rf"(?<![\w.\"]){name}\b(?! *=[^=])", block)
        return used is not None and re.search(made, block, re.MULTILINE) is None

    names = {name for name in faultline.__all__ if lacks(name)}
    own = ""
    if lacks("app"):
        names.add("Faultline")
        own = 'app = Faultline("x")\n'
    # The same word is text on one page and a number on another.
    returns = "int" if "-> int" in block else "str"
    given = "".join(dedent(text.replace("{returns}", returns)) + "\n" for name, text in GIVEN.items() if lacks(name))
    imports = f"from faultline import {', '.join(sorted(names))}\n" if names else ""
    return f"{imports}{own}{given}{block}"


def written(folder: Path) -> list[Path]:
    paths = []
    for name, text in programs().items():
        path = folder / f"{name}.py"
        path.write_text(text)
        paths.append(path)
    return paths
