"""A page on moving from another system, taken apart: its table of contents, its constructs, and the programs of each."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faultline

if TYPE_CHECKING:
    import pytest

    from faultline import Faultline
    from tests.driver import Driver

HOW_TO = Path(__file__).parents[2] / "docs/how-to"
OURS = "# Faultline\n"


@dataclass(frozen=True)
class Page:
    """The page `docs/how-to/NAME.md`, whose other system calls itself `theirs`."""

    name: str
    theirs: str

    @cached_property
    def text(self) -> str:
        return (HOW_TO / f"{self.name}.md").read_text()

    @property
    def listed(self) -> list[tuple[int, str]]:
        """The constructs of the table of contents: number and anchor."""
        return [(int(number), anchor) for number, anchor in re.findall(r"\[(\d+)\]\(#([\w-]+)\)", self.text)]

    @property
    def titles(self) -> list[str]:
        return re.findall(r"^### (.*)$", self.text, re.MULTILINE)

    def section(self, title: str) -> str:
        (found,) = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", self.text, re.MULTILINE | re.DOTALL)
        return str(found)

    def blocks(self, title: str) -> list[tuple[str, str]]:
        """The language and the text of each."""
        return re.findall(r"```(\w+)\n(.*?)```", self.section(title), re.DOTALL)

    def programs(self, title: str) -> list[str]:
        """Those of Faultline."""
        return [text for language, text in self.blocks(title) if language == "python" and text.startswith(OURS)]


PAGES = {
    page.name: page
    for page in (
        Page("celery", "Celery"),
        Page("arq", "arq"),
        Page("rq", "RQ"),
        Page("dramatiq", "Dramatiq"),
        Page("procrastinate", "Procrastinate"),
    )
}


@dataclass(frozen=True)
class Scene:
    """One construct, and what a check of it needs."""

    page: Page
    title: str
    app: Faultline
    queue: Driver
    patch: pytest.MonkeyPatch
    folder: Path

    def run(self, number: int = 0, **words: Any) -> dict[str, Any]:
        """What Faultline's program defines, run as printed."""
        module = types.ModuleType("page")
        self.patch.setitem(sys.modules, "page", module)
        names: dict[str, Any] = vars(module)
        names.update({name: getattr(faultline, name) for name in faultline.__all__}, app=self.app, **words)
        program = self.page.programs(self.title)[number]
        exec(compile(program, "page", "exec", dont_inherit=True), names)  # noqa: S102 - our own page
        return names


Check = Callable[[Scene], None]
#: By page and title.
CHECKS: dict[tuple[str, str], Check] = {}


def checks(title: str, *pages: str) -> Callable[[Check], Check]:
    """Register the check of the construct with this title: of the Celery page, unless others are named."""

    def register(check: Check) -> Check:
        for page in pages or ("celery",):
            assert (page, title) not in CHECKS
            CHECKS[page, title] = check
        return check

    return register


def asynchronously(app: Faultline, call: Callable[..., Any], *args: Any) -> Any:
    """What an async function of a program returns, on an event loop of its own."""

    async def main() -> Any:
        async with app:
            return await call(*args)

    return asyncio.run(main())


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
