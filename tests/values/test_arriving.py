"""What is enqueued arrives as it was, or is refused: field by field, also where only a part of a class can be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from faultline import JobRejected, values
from faultline.store import jsontext

if TYPE_CHECKING:
    from fractions import Fraction

    from faultline import Faultline

T = TypeVar("T")
ID = UUID(int=7)
DAY = date(2026, 1, 1)


class Size(Enum):
    SMALL = "small"


class Word(StrEnum):
    ONE = "one"


@dataclass
class Order:
    """One of its names is known to a type checker only."""

    id: UUID
    size: Size
    number: int
    share: Fraction | None = None


class Line(TypedDict):
    id: UUID
    share: Fraction | None


class Place(NamedTuple):
    id: UUID
    share: Fraction | None = None


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Ids(Box[UUID]): ...


@dataclass
class Days(Box[dict[str, T]]):
    first: T


@dataclass
class MoreIds(Ids): ...


@dataclass
class Counted:
    number: int
    seen: int = field(default=0, init=False)


@dataclass
class Late:
    number: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.number + 1


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Hidden(pydantic.BaseModel):
    shown: int
    hidden: int = pydantic.Field(default=0, exclude=True)
    _kept: object = pydantic.PrivateAttr(default_factory=object)


class Base(pydantic.BaseModel):
    number: int


class Derived(Base):
    more: int = 3


class Holder(pydantic.BaseModel):
    held: Base
    nested: list[Hidden] = []
    anything: Any = None


class Blob(pydantic.BaseModel):
    content: bytes


class Struct(msgspec.Struct):
    anything: Any


@dataclass
class Node:
    following: Node | None = None


def arrived(app: Faultline, annotation: Any, value: Any) -> Any:
    def take(x): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    take.__annotations__ = {"x": annotation}
    parameters = app.task(take).parameters
    return parameters.arguments(jsontext.decode_args(parameters.text({"x": value})))["x"]


counted = Counted(1)
late = Late(1)
circle = Node()
circle.following = circle
chain: Node | None = None
for _ in range(2000):
    chain = Node(chain)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(ID, Size.SMALL, 1)),
        (list[Order], [Order(ID, Size.SMALL, 1)]),
        (Line, {"id": ID, "share": None}),
        (Place, Place(ID)),
        (Ids, Ids(ID)),
        (MoreIds, MoreIds(ID)),
        (Days[date], Days({"a": DAY}, DAY)),
        (Counted, counted),
        (Late, late),
        (Counter[str], Counter("aab")),
        (set[Word], {Word.ONE}),
        (list[str], [Word.ONE]),
        (Box[str], Box(Word.ONE)),
        (Box[float], Box(1)),
        (set[float], {1}),
        (Hidden, Hidden(shown=1)),
        (Holder, Holder(held=Base(number=1), nested=[Hidden(shown=2)], anything={"a": [1, None]})),
        (Struct, Struct({"a": [1]})),
        (timedelta, timedelta(days=10_000, microseconds=1)),
    ],
    ids=lambda one: str(one)[:40],
)
def test_it_arrives_as_it_was(app: Faultline, annotation: Any, value: Any) -> None:
    found = arrived(app, annotation, value)

    assert found == value or isinstance(value, Hidden | Holder)
    assert type(found) is type(value) or isinstance(value, Counter)


wrong = Counted(1)
wrong.seen = 5
wrong_total = Late(1)
wrong_total.total = 7


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Order, Order(ID, Size.SMALL, "one"), "field number: 'one' is not int"),  # type: ignore[arg-type]
        (Order, Order(ID, Size.SMALL, 1, ID), "x is a Order and would arrive with other types inside"),  # type: ignore[arg-type]
        (Box, Box(ID), "would arrive with other types inside"),
        (set[str | UUID], {ID}, "would arrive with other types inside"),
        (set[str | date], {DAY}, "would arrive with other types inside"),
        (list[str | UUID], [ID], "would arrive with other types inside"),
        (tuple[Any, date], (Size.SMALL, DAY), "would arrive with other types inside"),
        (dict[str | UUID, date], {ID: DAY}, "would arrive with other types inside"),
        (dict, {ID: 1, str(ID): 2}, "would arrive with other types inside"),
        (set[int | Size], {Size.SMALL, "small"}, "would arrive with other types inside"),
        (Counted, wrong, "x is a Counted and would arrive with another value of seen"),
        (Late, wrong_total, "x is a Late and would arrive with another value of total"),
        (Login, Login(password="hunter2"), "x is a Login and would arrive with another value of password"),  # type: ignore[arg-type]
        (Hidden, Hidden(shown=1, hidden=2), "x is a Hidden and would arrive with another value of hidden"),
        (list[Hidden], [Hidden(shown=1, hidden=2)], "x is a list and would arrive with other types inside"),
        (Holder, Holder(held=Derived(number=1)), "x is a Holder and would arrive with another value of held"),
        (Holder, Holder(held=Base(number=1), anything=DAY), "x is a Holder and would arrive with another value of anything"),
        (Struct, Struct(DAY), "x is a Struct and would arrive with another value of anything"),
        (timedelta, timedelta(days=200_000, microseconds=1), "x is a timedelta and would arrive as 200000 days, 0:00:00"),
        (dict[tuple[int, int], int], {(1, 2): 3}, "x cannot be stored: TypeError: a dict has the key (1, 2)"),
        (Blob, Blob(content=b"\xff"), "x cannot be stored: UnicodeDecodeError"),
        (Struct, Struct(object()), "x cannot be stored: TypeError"),
        (Node, circle, "x is nested too deeply or contains itself"),
        (Node, chain, "x is nested too deeply or contains itself"),
    ],
    ids=lambda one: str(type(one))[:40],
)
def test_what_would_arrive_changed_is_refused(app: Faultline, annotation: Any, value: Any, said: str) -> None:
    with pytest.raises(JobRejected) as raised:
        arrived(app, annotation, value)

    assert said in str(raised.value)


@pytest.mark.parametrize("value", [circle, {(1, 2): 3}, Blob(content=b"\xff")], ids=lambda one: type(one).__name__)
def test_a_result_that_cannot_be_written_is_named(value: Any) -> None:
    with pytest.raises(JobRejected, match="result of pay"):
        values.text_of(value, "result of pay")
