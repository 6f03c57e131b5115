"""`bind_each` makes the jobs that `bind` makes one by one, and refuses what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from faultline import Faultline
from faultline.core.errors import JobRejected


@dataclass
class Page:
    number: int


@pytest.fixture
def app() -> Faultline:
    app = Faultline("postgresql:///nobody_asks")

    @app.task(queue="slow", priority=3)
    async def anything(item: Any) -> None: ...

    @app.task
    async def page(page: Page) -> None: ...

    @app.task
    async def two(left: int, right: int) -> None: ...

    @app.task
    async def none_at_all() -> None: ...

    return app


@pytest.mark.parametrize(
    "items",
    [
        [],
        list(range(100)),
        ["a", 'with "quotes"', "é", "null", "\\u0000 as text"],
        [None, 1],
        [2**70, -(2**80), 1],
        [{"b": 1, "a": [1.5, True]}, [], {}],
    ],
    ids=["nothing", "numbers", "text", "null", "long integers", "nested"],
)
def test_it_makes_the_same_jobs(app: Faultline, items: list[Any]) -> None:
    task = app.tasks["anything"]
    assert task.bind_each(iter(items)) == [task.bind(item) for item in items]


def test_it_writes_what_annotations_say(app: Faultline) -> None:
    task = app.tasks["page"]
    items = [Page(1), Page(2)]
    assert task.bind_each(items) == [task.bind(item) for item in items]


@pytest.mark.parametrize(
    "item", [math.nan, "a\x00b", object(), "\ud800", {"deep": [math.inf]}], ids=["nan", "nul", "object", "surrogate", "inf"]
)
def test_it_refuses_the_same_items(app: Faultline, item: object) -> None:
    task = app.tasks["anything"]
    with pytest.raises(JobRejected) as one_by_one:
        task.bind(item)
    with pytest.raises(JobRejected) as together:
        task.bind_each([1, item, 2])
    assert str(together.value) == str(one_by_one.value)


@pytest.mark.parametrize("name", ["two", "none_at_all"])
def test_it_refuses_a_task_that_does_not_take_one_argument(app: Faultline, name: str) -> None:
    with pytest.raises(JobRejected, match=name):
        app.tasks[name].bind_each([1])
