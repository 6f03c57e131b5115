"""The page, taken apart: its table of contents, its constructs, and the programs of each."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faultline

if TYPE_CHECKING:
    import pytest

    from faultline import Faultline
    from tests.driver import Driver

TEXT = (Path(__file__).parents[2] / "docs/how-to/celery.md").read_text()
OURS = "# Faultline\n"


@dataclass(frozen=True)
class Scene:
    """One construct, and what a check of it needs."""

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
        exec(compile(programs(self.title)[number], "page", "exec", dont_inherit=True), names)  # noqa: S102 - our own page
        return names


Check = Callable[[Scene], None]
CHECKS: dict[str, Check] = {}


def checks(title: str) -> Callable[[Check], Check]:
    """Register the check of the construct with this title."""

    def register(check: Check) -> Check:
        CHECKS[title] = check
        return check

    return register


def listed() -> list[tuple[int, str]]:
    """The constructs of the table of contents: number and anchor."""
    return [(int(number), anchor) for number, anchor in re.findall(r"\[(\d+)\]\(#([\w-]+)\)", TEXT)]


def titles() -> list[str]:
    return re.findall(r"^### (.*)$", TEXT, re.MULTILINE)


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def section(title: str) -> str:
    (found,) = re.findall(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(title: str) -> list[tuple[str, str]]:
    """The language and the text of each."""
    return re.findall(r"```(\w+)\n(.*?)```", section(title), re.DOTALL)


def programs(title: str) -> list[str]:
    """Those of Faultline."""
    return [text for language, text in blocks(title) if language == "python" and text.startswith(OURS)]
