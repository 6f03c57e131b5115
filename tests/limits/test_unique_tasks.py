"""`unique=` of a task: keys are made of the arguments, mistakes raise where they are made, every way to enqueue has it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ConfigError, Faultline, Job, JobRejected, Unique
from faultline.testing import drain

if TYPE_CHECKING:
    from tests.driver import Clock, Driver


def test_a_key_over_the_arguments(app: Faultline) -> None:
    @app.task(unique=Unique(key="doc:{doc_id}"))
    def index(doc_id: int, why: str = "saved") -> None: ...

    first = index.enqueue(1)
    second = index.enqueue(1, "moved")
    other = index.enqueue(2)

    assert (second.id, second.created) == (first.id, False)
    assert other.created
    assert first.job().unique_key == "doc:1"


def test_queued_is_short_for_it_and_options_may_say_otherwise(app: Faultline) -> None:
    @app.task(unique="queued")
    def index(doc_id: int) -> None: ...

    first = index.enqueue(1)

    assert index.enqueue(1).id == first.id
    assert index.enqueue(2).created
    assert index.options(unique=Unique(key="all")).enqueue(1).created
    assert [handle.created for handle in app.enqueue_many([index.bind(1), index.bind(3), index.bind(3)])] == [
        False,
        True,
        False,
    ]
    assert len(index.bind_each([1, 2])) == 2
    assert all(one.unique is not None for one in index.bind_each([1, 2]))


def test_a_debounced_task_runs_once_with_the_last_arguments(app: Faultline, clock: Clock) -> None:
    ran: list[Any] = []

    @app.task(unique=Unique(key="cart:{cart}", then="replace", debounce=timedelta(seconds=5), at_most=60))
    def price(cart: int, items: int) -> None:
        ran.append((cart, items))

    for items in range(3):
        price.enqueue(7, items)
        clock.advance(2)
    assert drain(app).succeeded == 0
    clock.advance(3)

    assert drain(app).succeeded == 1
    assert ran == [(7, 2)]


def test_a_throttled_task_runs_once_in_its_period(app: Faultline, clock: Clock) -> None:
    @app.task(unique=Unique(None, key="alert:{host}", period=3600))
    def alert(host: str) -> None: ...

    first = alert.enqueue("a")
    drain(app)
    clock.advance(3599)
    assert alert.enqueue("a").id == first.id
    clock.advance(1)
    assert alert.enqueue("a").created


def test_a_published_topic_fills_the_key_in_the_database(app: Faultline) -> None:
    @app.on("doc.saved")
    @app.task(unique=Unique(key="doc:{doc_id}/{lang}"))
    def index(doc_id: int, lang: str = "en") -> None: ...

    app.declare()
    (first,) = app.publish("doc.saved", {"doc_id": 1, "by": "ada"})
    (second,) = app.publish("doc.saved", {"doc_id": 1, "by": "bob"})
    (other,) = app.publish("doc.saved", {"doc_id": 1, "lang": "de"})

    assert (first.created, second.created, other.created) == (True, False, True)
    assert first.job().unique_key == "doc:1/en"
    assert index.enqueue(1).id == first.id
    with pytest.raises(JobRejected, match=r"the unique key of task .* doc_id is missing"):
        app.publish("doc.saved", {"by": "ada"})
    assert app.declare() == 0


def test_a_throttled_task_may_be_subscribed(app: Faultline) -> None:
    @app.on("down")
    @app.task(unique=Unique(None, period=60))
    def alert(host: str) -> None: ...

    app.declare()

    assert [app.publish("down", {"host": "a"})[0].created for _ in range(2)] == [True, False]


def test_a_child_for_which_another_job_stands_in_is_waited_for(app: Faultline) -> None:
    ran: list[int] = []

    @app.task(queue="other", unique="queued")
    def render(page: int) -> str:
        ran.append(page)
        return f"page {page}"

    @app.task
    async def book(job: Job) -> list[str]:
        return [await job.call(render, 1), *(await job.map(render, [2, 2, 3]))]

    first = render.enqueue(1)
    handle = book.enqueue()
    drain(app, "default")
    drain(app)

    assert handle.job().result == ["page 1", "page 2", "page 2", "page 3"]
    assert sorted(ran) == [1, 2, 3]
    assert first.job().state == "succeeded"


def test_a_graph_cannot_have_unique_jobs(app: Faultline) -> None:
    @app.task(unique="queued")
    def render(page: int) -> None: ...

    flow = app.flow("book")
    flow.add(render, 1)
    with pytest.raises(JobRejected, match="is unique; give an idempotency_key to the whole graph"):
        flow.enqueue()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"while_": "running"}, "while_ of Unique"),
        ({"while_": None}, "neither while_ nor period"),
        ({"then": "drop"}, "then of Unique"),
        ({"key": ""}, "key of Unique"),
        ({"key": "x" * 501}, "key of Unique"),
        ({"key": "a\x00"}, "NUL"),
        ({"period": 0}, "period of Unique"),
        ({"period": -5}, "period of Unique"),
        ({"debounce": 0}, "debounce of Unique"),
        ({"debounce": True}, "debounce of Unique"),
        ({"debounce": "5"}, "debounce of Unique"),
        ({"at_most": 5}, "at_most without a debounce"),
        ({"debounce": 5, "at_most": 4}, "shorter than its debounce"),
        ({"while_": None, "period": 5, "debounce": 5}, "debounce without while_"),
    ],
)
def test_a_mistake_raises_where_it_is_made(words: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Unique(**words)


def test_a_mistake_of_a_task_raises_where_it_is_decorated(app: Faultline) -> None:
    with pytest.raises(ConfigError, match="unique must be"):

        @app.task(unique="always")
        def wrong() -> None: ...

    with pytest.raises(ConfigError, match=r"the unique key of task .* names doc, which is not an argument"):

        @app.task(unique=Unique(key="doc:{doc}"))
        def misnamed(doc_id: int) -> None: ...

    with pytest.raises(ConfigError, match="debounce is the delay"):

        @app.task(unique=Unique(debounce=5), delay=3)
        def twice(doc_id: int) -> None: ...


def test_a_bad_key_raises_where_the_job_is_made_and_nothing_is_enqueued(app: Faultline, queue: Driver) -> None:
    @app.task(unique=Unique(key="{name}"))
    def index(name: Any) -> None: ...

    for bad, why in (
        (None, "is None"),
        ("x" * 10_000, "10000 characters"),
        ("a\x00b", "NUL"),
        ("", "1 to 500"),
        ([1], "text or"),
    ):
        with pytest.raises(JobRejected, match=why):
            index.enqueue(bad)
    assert queue.value("select count(*) from faultline.open_jobs") == 0
