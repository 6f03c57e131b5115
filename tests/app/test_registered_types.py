"""A class that a program registers is stored and read like any other type."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ConfigError, Faultline, Job, JobRejected, Submission
from faultline.flow import kinds, reading
from tests.flow.running import ended

if TYPE_CHECKING:
    from collections.abc import Iterator


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    @classmethod
    def parse(cls, text: str) -> Money:
        amount, currency = text.split(" ")
        return cls(Decimal(amount), currency)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def registered() -> Iterator[dict[type, Any]]:
    """Types that are registered hold for the whole program: forget those of a test."""
    yield kinds._registered  # noqa: SLF001 - there is no way to unregister one
    kinds._registered.clear()  # noqa: SLF001
    reading.forget()


def test_a_registered_type_is_stored_and_read_everywhere(app: Faultline, registered: dict[type, Any]) -> None:
    @app.task
    async def early(price: Money) -> None: ...

    early.bind(Money(Decimal(1)))  # looked at before it is registered
    app.type(Money, store=str, read=Money.parse)
    app.type(Point, store=lambda point: {"x": point.x}, read=lambda stored: Point(stored["x"]))

    @dataclass
    class Line:
        price: Money
        points: list[Point] = field(default_factory=list)

    def add(point: Point) -> Point:
        return Point(point.x + 1)

    @app.task(group="{price}")
    async def pay(job: Job, price: Money, line: Line, points: dict[str, Point]) -> tuple[Point, Money]:
        assert (line, points) == (Line(Money(Decimal("1.10")), [Point(3)]), {"a": Point(4)})
        return await job.step("add", add, Point(1)), price

    handle = pay.enqueue(Money(Decimal(5)), Line(Money(Decimal("1.10")), [Point(3)]), {"a": Point(4)})

    assert app.job(handle.id).group == "5 EUR"
    assert app.job(handle.id).args["price"] == "5 EUR"
    assert ended(app, handle) == (Point(2), Money(Decimal(5)))
    assert early.bind(Money(Decimal(1))).args == '{"price":"1 EUR"}'
    [wrong] = app.enqueue_many([Submission("early", '{"price": "five"}')])
    assert "price does not fit its annotation: 'five' is not Money: not enough values to unpack" in str(ended(app, wrong))


def test_a_type_that_nobody_knows_is_refused_with_what_to_do(app: Faultline) -> None:
    @app.task
    async def pay(point: Point) -> Point:
        return Point(1)

    with pytest.raises(JobRejected, match=r"arguments of pay .*point is a Point.* register its type with app.type\("):
        pay.enqueue(Point(1))


def test_a_mistake_about_a_type_raises_where_it_is_registered(app: Faultline, registered: dict[type, Any]) -> None:
    def broken(value: Any) -> Any:
        raise ZeroDivisionError("no")

    bad: list[tuple[dict[str, Any], str]] = [
        ({"kind": "Money", "store": str, "read": str}, "needs a class, not 'Money'"),
        ({"kind": str, "store": str, "read": str}, "str is stored as it is"),
        ({"kind": Colour, "store": str, "read": str}, "Colour is stored by its value"),
        ({"kind": Money, "store": "text", "read": str}, "type Money: store must be a function"),
        ({"kind": Money, "store": str, "read": None}, "type Money: read must be a function"),
    ]
    for words, said in bad:
        with pytest.raises(ConfigError, match=said):
            app.type(words.pop("kind"), **words)
    app.type(Point, store=broken, read=broken)
    app.type(Point, store=broken, read=broken)  # the same again
    with pytest.raises(ConfigError, match="type Point is registered already, with other functions"):
        app.type(Point, store=str, read=broken)

    @app.task
    async def pay(point: Point) -> None: ...

    with pytest.raises(JobRejected, match="cannot be stored: ZeroDivisionError: no"):
        pay.enqueue(Point(1))
