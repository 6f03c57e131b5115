"""The pages on types, retries and sagas show programs that run as printed."""

from __future__ import annotations

import re
import sys
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faultline import Faultline, Job
from faultline.testing import drain, frozen_time
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


def test_the_page_on_changed_parameters_runs_the_jobs_of_each_deployment(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs that a version enqueues run with that version and with the next one; the last one names what is missing."""
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / "change-a-task.md").read_text(), re.DOTALL)
    versions: list[Any] = []
    for block in blocks:
        names: dict[str, Any] = {"app": Faultline(dsn)}
        exec(compile(block, "page", "exec", dont_inherit=True), names)  # noqa: S102 - it is our own page
        versions.append(names["app"])
    first, added, both, last = versions

    old, new = [added.tasks["invoice"].enqueue(customer=1)], [both.tasks["invoice"].enqueue(customer_id=2)]
    older = first.tasks["invoice"].enqueue(1)

    assert results(both, [both.handle(one.id) for one in (*old, *new, older)]) == [
        "invoice for 1 in EUR", "invoice for 2 in EUR", "invoice for 1 in EUR",
    ]  # fmt: skip
    last_one = both.tasks["invoice"].enqueue(customer_id=3)
    assert results(last, [last.handle(last_one.id)]) == ["invoice for 3 in EUR"]
    for one in versions:
        one.close()


def test_the_page_on_retries_gives_the_same_answers_in_every_run(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = program("retries", dsn, monkeypatch, datetime=datetime, UTC=UTC)

    with page["app"] as app, frozen_time(app) as time:
        handles = [app.tasks["order"].enqueue(order) for order in (12, 13, 14)]
        drain(app, advancing=time)
        found = [handle.result(5) for handle in handles]

    assert found == ["paid", "funds, 4.20 are missing", "ask a person: ConnectionError"]


def test_the_page_on_sagas_catches_what_a_step_declares(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Faultline(dsn)
    named = {
        name: steps.step(name=name)(lambda *_: "booked")
        for name in ("book_flight", "book_hotel", "cancel_flight", "cancel_hotel")
    }
    page = program("sagas", dsn, monkeypatch, **named)

    with page["app"] as app, frozen_time(app) as time:
        handle = app.tasks["weekend"].enqueue("Lisbon")
        drain(app, advancing=time)

        assert handle.result(5) == "room in Sintra"
