"""The pages on types and retries show programs that run as printed."""

from __future__ import annotations

import re
import sys
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job
from faultline.values import kinds, reading
from tests.worker.working import results

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = Path(__file__).parents[2] / "docs/how-to"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Types that a page registers hold for the whole program."""
    yield
    kinds._registered.clear()  # noqa: SLF001 - there is no way to unregister one
    reading.forget()


def program(page: str, dsn: str, patch: pytest.MonkeyPatch, **words: Any) -> dict[str, Any]:
    """What the blocks of a page define, run one after the other as one program."""
    module = types.ModuleType("page")
    patch.setitem(sys.modules, "page", module)
    app = Faultline(dsn)
    names: dict[str, Any] = vars(module)
    names.update(app=app, Job=Job, **words)
    for block in re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL):
        for name in re.findall(r"def (\w+)\(", block):
            names["app"].tasks.pop(name, None)  # a page may show a task twice
        code = compile(block.replace("Faultline()", f"Faultline({dsn!r})"), "page", "exec", dont_inherit=True)
        exec(code, names)  # noqa: S102 - it is our own page
    return names


def test_the_page_on_types_gives_and_returns_what_it_says(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = program("types", dsn, monkeypatch)

    with page["app"] as app:
        found = results(app, [page["handle"], page["paid"]])

    assert found[0] == (page["UUID"](int=7), page["date"](2026, 12, 27))
    assert type(found[1]) is page["Money"]
    assert found[1].cents == 975
    with pytest.raises(ValueError, match="would arrive as a dict; annotate the parameter with its type"):
        app.task(name="bare")(lambda order: order).enqueue(page["order"])


def test_the_page_on_retries_declares_what_it_says(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = program("retries", dsn, monkeypatch, datetime=datetime, UTC=UTC)

    page["app"].close()
    tasks = page["app"].tasks
    assert [tasks["poll"].backoff(n) for n in (1, 2)] == [60, 60]
    assert [tasks["fetch"].backoff(n) for n in (1, 2, 9)] == [5, 15, 600]
    assert tasks["charge_once"].rules.final(page["BadCard"]()) is not None
    assert tasks["charge_again"].rules.final(page["RateLimited"]()) is None
