"""Arguments arrive as the annotations of the task say, however they were enqueued. Plain JSON costs nothing more."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import msgspec
import pydantic
import pytest

from faultline import BlockingJob, ContinueAsNew, Faultline, Job, JobFailed, JobRejected, Submission, Task
from tests.flow.running import ended

if TYPE_CHECKING:
    from fractions import Fraction

    from faultline import JobHandle
    from faultline.app.parameters import Parameters


T = TypeVar("T")
OrderId = NewType("OrderId", UUID)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Shape(Enum):
    PAIR = (1, 2)
    DAY = date(2026, 1, 1)


class Place(NamedTuple):
    x: int
    y: int


class Due(TypedDict):
    at: datetime
    note: NotRequired[str]


class Line(TypedDict):
    n: int


@dataclass(frozen=True)
class Item:
    id: UUID
    price: Decimal
    colours: list[Colour] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    number: int
    items: list[Item]
    due: date | None = None


@dataclass
class Box(Generic[T]):
    it: T
    more: list[T]


@dataclass
class Tree:
    id: UUID
    children: list[Tree]
    above: Tree | None = None


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    order_id: UUID = pydantic.Field(alias="orderId")
    at: datetime
    tags: set[str] = set()


class Struct(msgspec.Struct):
    id: UUID
    at: datetime
    tags: set[str] = set()


ORDER = Order(1, [Item(UUID(int=5), Decimal("3.50"), [Colour.RED])], date(2026, 11, 17))
NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)

#: Annotations, and a value that arrives as it was.
ARRIVES: list[tuple[Any, Any]] = [
    (UUID, UUID(int=7)),
    (datetime, NOON),
    (date, date(2026, 11, 17)),
    (timedelta, timedelta(minutes=90)),
    (Decimal, Decimal("0.10")),
    (Colour, Colour.RED),
    (Order, ORDER),
    (Order | None, ORDER),
    (Order | None, None),
    (list[Order], [ORDER, ORDER]),
    (dict[str, Order], {"b": ORDER, "a": ORDER}),
    (tuple[int, str], (1, "x")),
    (Place, Place(1, 2)),
    (Due, {"at": NOON}),
    (Annotated[Order, "paid"], ORDER),
    (int | UUID, UUID(int=7)),
    (int | UUID, 7),
    (time, time(23, 59, 1, 5, tzinfo=UTC)),
    (bytes, b"\x00\xff"),
    (set[UUID], {UUID(int=7), UUID(int=8)}),
    (frozenset[str], frozenset({"b", "a"})),
    (AbstractSet[int], {1, 2}),
    (deque[date], deque([date(2026, 11, 17)])),
    (tuple[UUID, ...], (UUID(int=7),)),
    (tuple[()], ()),
    (Sequence[UUID], [UUID(int=7)]),
    (Mapping[str, UUID], {"a": UUID(int=7)}),
    (dict[UUID, Decimal], {UUID(int=7): Decimal(1)}),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[Level, str], {Level.LOW: "a"}),
    (Level, Level.LOW),
    (Shape, Shape.PAIR),
    (Shape, Shape.DAY),
    (Literal[Colour.RED, "blue"], Colour.RED),
    (Literal[Colour.RED, "blue"], "blue"),
    (UUID | None, UUID(int=7)),
    (str | date, "2026-11-17"),
    (Order | Place, ORDER),
    (Order | Place, Place(1, 2)),
    (bytes | int, b"x"),
    (OrderId, UUID(int=7)),
    (Due, {"at": NOON, "note": "x"}),
    (Box[UUID], Box(UUID(int=7), [UUID(int=8)])),
    (Tree, Tree(UUID(int=1), [Tree(UUID(int=2), [])])),
    (dict[str, list[tuple[set[date], Order | None]]], {"a": [({date(2026, 1, 1)}, ORDER), (set(), None)]}),
    (Model, Model(orderId=UUID(int=7), at=NOON, tags={"a", "b"})),
    (list[Model | None], [Model(orderId=UUID(int=7), at=NOON), None]),
    (Struct, Struct(UUID(int=7), NOON, {"a", "b"})),
    (Annotated[list[UUID], ["metadata that cannot be hashed"]], [UUID(int=7)]),
]


@pytest.mark.parametrize(("annotation", "value"), ARRIVES, ids=[str(pair[0]) for pair in ARRIVES])
def test_a_value_arrives_as_its_annotation_says(app: Faultline, annotation: Any, value: Any) -> None:
    got: list[Any] = []

    async def take(x, y=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - annotated below
        got.append(x)

    take.__annotations__ = {"x": annotation, "y": int}
    task = app.task(take)

    ended(app, task.enqueue(value))

    assert got == [value]
    assert type(got[0]) is type(value)


@pytest.mark.parametrize("way", ["enqueue", "call", "map", "results", "detached", "graph", "again", "topic", "blocking"])
def test_arguments_are_read_whichever_way_the_job_was_enqueued(app: Faultline, way: str) -> None:
    got: list[Any] = []

    @app.on("order.paid")
    @app.task
    async def ship(order: Order) -> Order:
        got.append(order)
        return order

    @app.task
    async def program(job: Job, way: str) -> None:
        match way:
            case "call":
                assert await job.call(ship, ORDER) == ORDER
            case "map":
                assert await job.map(ship, [ORDER]) == [ORDER]
            case "results":
                assert [one async for one in job.results(ship, [ORDER])] == [ORDER]
            case "detached":
                await job.watch(await job.enqueue(ship, order=ORDER))

    @app.task
    def blocking(job: BlockingJob) -> None:
        assert job.call(ship, ORDER) == ORDER

    @app.task
    async def anew(order: Order, rounds: int) -> Any:
        got.append(order)
        return ContinueAsNew(order, rounds=rounds - 1) if rounds else None

    app.declare()
    made: dict[str, Any] = {
        "enqueue": lambda: ship.enqueue(ORDER),
        "graph": lambda: _graph(app, ship),
        "again": lambda: anew.enqueue(ORDER, 1),
        "topic": lambda: app.publish("order.paid", {"order": ORDER})[0],
        "blocking": blocking.enqueue,
    }
    handle: JobHandle[Any] = made.get(way, lambda: program.enqueue(way))()

    error = ended(app, handle)

    assert not isinstance(error, Exception), error
    assert set(map(repr, got)) == {repr(ORDER)}


def _graph(app: Faultline, ship: Any) -> JobHandle[Any]:
    flow = app.flow("orders")
    flow.add(ship, ORDER, after=[flow.add(ship, order=ORDER, name="before")])
    return flow.enqueue()


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_what_does_not_fit_its_annotation_fails_the_job_and_names_the_parameter(app: Faultline, kind: str) -> None:
    ran: list[Any] = []
    if kind == "async":

        @app.task(max_attempts=3)
        async def ship(order: Order, note: str = "") -> None:
            ran.append(order)
    else:

        @app.task(name="ship", max_attempts=3)
        def blocking(order: Order, note: str = "") -> None:
            ran.append(order)

    # As it may come over HTTP or SQL.
    [handle] = app.enqueue_many([Submission("ship", '{"order": {"number": "one", "items": []}}')])
    error = ended(app, handle)

    assert isinstance(error, JobFailed)
    assert "the arguments do not fit ship(" in str(error)
    assert "order does not fit its annotation: field number: 'one' is not int" in str(error)
    assert "Not retried: another attempt would read the same." in str(error)
    assert ran == []
    assert app.job(handle.id).attempt == 1


def test_what_would_arrive_as_something_else_is_refused_where_it_is_enqueued(app: Faultline) -> None:
    @app.task
    async def bare(x) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    @app.task
    async def text(x: str) -> None: ...

    @app.task
    async def items(x: list[Any]) -> None: ...

    @app.task
    async def unknown(x: Fraction) -> None: ...

    @app.task
    async def paid(order: Order, at: datetime | None = None) -> None: ...

    @app.task
    async def coloured(x: Colour) -> None: ...

    @app.task
    async def numbered(x: dict[int, int]) -> None: ...

    @app.task
    async def either(x: dict[str | int, date | str]) -> None: ...

    refused: list[tuple[Task[..., Any], Any, str]] = [
        (bare, ORDER, "x is a Order and would arrive as a dict; annotate the parameter with its type"),
        (bare, NOON, "x is a datetime and would arrive as a str"),
        (text, NOON, "x is a datetime and would arrive as a str"),
        (items, [NOON], "x is a list and would arrive with other types inside"),
        (unknown, ORDER, "x is a Order and would arrive as a dict; its annotation 'Fraction' names what is not there"),
        (paid, "text", "order does not fit its annotation: 'text' is not dict"),
        (paid, {"number": 1}, "order does not fit its annotation: {'number': 1} is not Order: it lacks the field items"),
        (bare, object(), "x is an object. Pass text, numbers, lists and dicts"),
        (bare, b"x", "x is a bytes and would arrive as a str"),
        (bare, {1, 2}, "x is a set and would arrive as a list"),
        (bare, Place(1, 2), "x is a Place and would arrive as a list"),
        (bare, time(1), "x is a time and would arrive as a str"),
        (bare, {1: "a"}, "x is a dict and would arrive with other types inside"),
        (items, [{1}], "x is a list and would arrive with other types inside"),
        (items, [{"a": [b"x"]}], "x is a list and would arrive with other types inside"),
        (coloured, "gone", "x does not fit its annotation: 'gone' is not a value of Colour, which has 'red'"),
        (numbered, {"a": 1}, "x does not fit its annotation: 'a' is not int"),
        (either, {1: "a"}, "x is a dict and would arrive with other types inside"),
    ]
    for task, value, said in refused:
        with pytest.raises(JobRejected) as raised:
            task.enqueue(value)
        assert f"arguments of {task.name}" in str(raised.value)
        assert said in str(raised.value)


def test_a_dict_of_json_fits_a_dataclass_as_it_does_over_http(app: Faultline) -> None:
    @app.task
    async def ship(order: Order) -> Order:
        return order

    assert ended(app, ship.enqueue({"number": 2, "items": []})) == Order(2, [])  # type: ignore[arg-type]


def test_further_keyword_arguments_are_read_by_their_annotation_too(app: Faultline) -> None:
    got: dict[str, Any] = {}

    @app.task
    async def take(first: int, **others: date) -> None:
        got.update(others)

    ended(app, take.enqueue(1, a=date(2026, 1, 1), b=date(2026, 1, 2)))

    assert got == {"a": date(2026, 1, 1), "b": date(2026, 1, 2)}


PLAIN: list[Any] = [
    str, int, float, bool, None, Any, object, dict, list, dict[str, Any], dict[str, list[int]], list[dict[str, str | None]],
    int | None, Literal["a", "b"], Annotated[int, "positive"], Line, "Unknown",
]  # fmt: skip


@pytest.mark.parametrize("annotation", PLAIN, ids=str)
def test_arguments_of_plain_json_types_are_handed_over_as_they_are(app: Faultline, annotation: Any) -> None:
    def take(x): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    take.__annotations__ = {"x": annotation}

    parameters: Parameters = app.task(take).parameters

    assert not parameters.are_read


def test_a_uuid_or_an_enum_without_an_annotation_arrives_as_text_as_before(app: Faultline) -> None:
    @app.task
    async def take(x, y, z: date) -> list[Any]:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return [x, y]

    assert ended(app, take.enqueue(UUID(int=1), Colour.RED, date(2026, 1, 1))) == [str(UUID(int=1)), "red"]
