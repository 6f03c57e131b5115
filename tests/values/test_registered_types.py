"""A class that a program registers is stored and read like any other type."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from faultline import ConfigError, Faultline, Job, JobRejected, Submission
from faultline.values import kinds, reading
from tests.flow.running import ended
from tests.worker.working import results

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


def test_a_class_that_ends_the_program_when_it_is_read_harms_its_own_job_only(
    app: Faultline, registered: dict[type, Any]
) -> None:
    def leave(stored: Any) -> Point:
        raise SystemExit(3) if stored == 2 else ValueError("odd")

    app.type(Point, store=lambda point: point.x, read=lambda stored: Point(stored) if stored == 1 else leave(stored))

    @app.task(name="pay", backoff=lambda _: 0)
    async def pay(point: Point) -> int:
        return point.x

    handles = app.enqueue_many([Submission("pay", f'{{"point": {n}}}') for n in (2, 1, 3, 1)])
    left, first, odd, second = results(app, handles)

    assert (first, second) == (1, 1)
    assert "the arguments of pay cannot be read: SystemExit: 3" in str(left)
    assert "point does not fit its annotation: 3 is not Point: odd. Not retried" in str(odd)
    assert [app.job(handle.id).attempt for handle in handles] == [5, 1, 1, 1]
