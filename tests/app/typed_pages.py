"""The programs of how-to pages, as files for type checkers: with what the pages take as given, and nothing else."""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import TYPE_CHECKING

import faultline
from tests.app.test_typing import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: Each block of these is a program of its own.
APART = ("celery", "limits", "schedules", "unique")
#: The blocks of these are one program.
WHOLE = ("batches", "cpu-bound", "hooks", "observability", "types")

#: So are the blocks of these, with what each page takes as given, by the name. Some are pieces of a task.
PIECES = {
    "graphs": {
        "connection": """
            import psycopg
            connection = psycopg.connect("")
            """,
        "day": 'day = "2026-01-01"',
        "extract": """
            @app.task
            def extract(name: str) -> None: ...
            """,
        "load": """
            @app.task
            def load() -> None: ...
            """,
        "report": """
            @app.task
            def report() -> None: ...
            """,
    },
    "retries": {
        "bank": """
            class bank:
                class Busy(Exception): ...
                class AccountClosed(Exception): ...
                class NoSuchCard(Exception): ...
                @staticmethod
                async def is_closed() -> bool: return True
                @staticmethod
                async def charge(order_id: int) -> str: return ""
            """,
        "charge": """
            @app.task
            def charge(order_id: int) -> None: ...
            """,
        "datetime": "from datetime import UTC, datetime",
        "remind": """
            @app.task
            def remind(order_id: int) -> None: ...
            """,
    },
    "sagas": {
        "book_flight": """
            @app.step
            async def book_flight(city: str) -> str: return ""
            """,
        "book_hotel": """
            @app.step
            async def book_hotel(city: str) -> str: return ""
            """,
        "cancel_flight": """
            @app.step
            async def cancel_flight(reference: str | None, city: str) -> None: ...
            """,
        "cancel_hotel": """
            @app.step
            async def cancel_hotel(reference: str | None, city: str) -> None: ...
            """,
        "charge": """
            @app.task
            def charge(city: str) -> str: return ""
            """,
        "refund": """
            @app.step
            async def refund(receipt: str | None, city: str) -> None: ...
            """,
    },
    "signals": {
        "dataclass": "from dataclasses import dataclass",
        "handle": 'handle: JobHandle[str] = app.handle("x")',
        "Order": """
            from dataclasses import dataclass
            @dataclass
            class Order:
                item: str
            """,
        "pack": """
            @app.step
            async def pack(order: Order) -> None: ...
            """,
        "timedelta": "from datetime import timedelta",
    },
    "transactions": {
        "bank": """
            class bank:
                @staticmethod
                async def charge(order_id: int, *, idempotency_key: str) -> None: ...
            """,
        "charge": """
            @app.task
            def charge(order_id: int) -> None: ...
            """,
        "draw_image": 'async def draw_image(text: str) -> str: return ""',
        "dsn": 'dsn = ""',
        "flow": 'flow = app.flow("nightly")',
        "job_id": """
            from uuid import uuid4
            job_id = uuid4()
            """,
        "order_id": "order_id = 42",
        "Order": """
            from sqlalchemy.orm import DeclarativeBase, Mapped
            class Base(DeclarativeBase): ...
            class Order(Base):
                paid: Mapped[int]
            """,
        "psycopg": "import psycopg",
        "session": """
            from sqlalchemy.orm import Session
            session = Session()
            """,
        "sessions": """
            from sqlalchemy.ext.asyncio import async_sessionmaker
            sessions = async_sessionmaker()
            """,
        "upload": 'def upload(text: str, image: str) -> str: return ""',
        "write_draft": 'async def write_draft(article_id: int) -> str: return ""',
    },
}

#: What the other pages take as given.
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
        ours = [block for block in blocks_of(page) if is_program(block)]
        parts = ours if page in APART else ["\n".join(ours)]
        for number, part in enumerate(parts, start=1):
            found[f"page_{page.replace('-', '_')}_{number}"] = with_given(part, GIVEN)
    for page, given in PIECES.items():
        for number, block in enumerate(blocks_of(page), start=1):
            found[f"page_{page}_{number}"] = with_given(block if is_program(block) else in_a_task(block), given)
    return found


def blocks_of(page: str) -> list[str]:
    text = (ROOT / f"docs/how-to/{page}.md").read_text()
    return re.findall(r"^```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)


def in_a_task(piece: str) -> str:
    return f"async def piece(job: Job) -> None:\n{indent(piece, '    ')}"


def is_program(block: str) -> bool:
    """Not a piece of a task, and not Celery's."""
    if block.startswith("# Celery"):
        return False
    try:
        compile(block, "page", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def with_given(block: str, known: dict[str, str]) -> str:
    """The program after its imports, its application and what else the page takes as given."""

    def lacks(name: str) -> bool:
        made = rf"^(?:{name} = |(?:async )?def {name}\b|class {name}\b|.*\bimport .*\b{name}\b)"
        used = re.search(rf"(?<![\w.\"]){name}\b(?! *=[^=])", block)
        return used is not None and re.search(made, block, re.MULTILINE) is None

    # The same word is text on one page and a number on another.
    returns = "int" if "-> int" in block else "str"
    given = "".join(dedent(text.replace("{returns}", returns)) + "\n" for name, text in known.items() if lacks(name))
    names = {name for name in faultline.__all__ if lacks(name) or re.search(rf"\b{name}\b", given)}
    own = ""
    if lacks("app") or "app." in given:
        names.add("Faultline")
        own = 'app = Faultline("x")\n'
    imports = f"from faultline import {', '.join(sorted(names))}\n" if names else ""
    return f"{imports}{own}{given}{block}"


def written(folder: Path) -> list[Path]:
    paths = []
    for name, text in programs().items():
        path = folder / f"{name}.py"
        path.write_text(text)
        paths.append(path)
    return paths
