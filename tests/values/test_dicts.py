"""Dicts of other classes arrive as their annotations say, with all that is their own, or are refused."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from faultline import Faultline, JobRejected, JobState
from faultline.testing import drain

KEPT: list[tuple[Any, Any]] = [
    (Counter[str], Counter({"long": 1, "a": 2})),
    (Counter, Counter({"a": 2})),
    (OrderedDict[str, int], OrderedDict({"long": 1, "a": 2})),
    (defaultdict[str, list[int]], defaultdict(list, {"a": [1]})),
    (defaultdict[int, int], defaultdict(int, {3: 1})),
    (list[Counter[str]], [Counter("abba")]),
]


@pytest.mark.parametrize(("annotation", "value"), KEPT)
def test_a_dict_of_another_class_arrives_as_annotated(app: Faultline, annotation: Any, value: Any) -> None:
    got: list[Any] = []

    def work(given: Any) -> None:
        got.append(given)

    work.__annotations__ = {"given": annotation, "return": None}
    app.task(work).enqueue(value)
    drain(app)

    assert got == [value]
    assert [type(one) for one in got] == [type(value)]
    assert getattr(got[0], "default_factory", None) is getattr(value, "default_factory", None)
    if isinstance(value, OrderedDict):
        assert list(got[0]) == list(value)


def test_a_counter_is_a_dict_where_the_annotation_says_so(app: Faultline) -> None:
    got: list[Any] = []

    @app.task
    def work(given: dict[str, int], other: Any) -> None:
        got.extend((given, other))

    work.enqueue(Counter("aa"), defaultdict(list, {"a": [1]}))
    drain(app)

    assert got == [{"a": 2}, {"a": [1]}]
    assert {type(one) for one in got} == {dict}


def test_a_default_that_is_not_of_the_annotation_is_refused(app: Faultline) -> None:
    @app.task
    def work(given: defaultdict[str, list[int]]) -> None: ...

    @app.task
    def other(given: defaultdict[str, datetime]) -> None: ...

    with pytest.raises(JobRejected, match="given is a defaultdict and would arrive with another factory"):
        work.enqueue(defaultdict(lambda: [7], {"a": [1]}))
    with pytest.raises(JobRejected, match="cannot be a defaultdict of datetime: its factory is not stored; use a dict"):
        other.enqueue(defaultdict(datetime.now, {"a": datetime(2026, 1, 1, tzinfo=UTC)}))


def test_a_result_whose_order_would_be_lost_is_refused(app: Faultline) -> None:
    @app.task(max_attempts=1)
    def work(names: list[str]) -> OrderedDict[str, int]:
        return OrderedDict((name, 1) for name in names)

    kept, lost = work.enqueue(["a", "bb"]), work.enqueue(["bb", "a"])
    drain(app)

    assert kept.result(5) == OrderedDict({"a": 1, "bb": 1})
    assert lost.job().state is JobState.FAILED
    assert "is a OrderedDict and would arrive in another order" in str(lost.job().last_error)


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 10, 25, 2, 30, fold=1), time(2, 30, fold=1), time(2, 30, tzinfo=ZoneInfo("Europe/Berlin"))],  # noqa: DTZ001
)
def test_a_time_that_would_lose_what_tells_it_from_another_is_refused(app: Faultline, value: Any) -> None:
    def work(given: Any) -> None: ...

    work.__annotations__ = {"given": type(value), "return": None}

    with pytest.raises(JobRejected, match="which would be lost; give it an offset"):
        app.task(work).enqueue(value)


def test_the_second_of_two_hours_is_kept_by_its_offset(app: Faultline) -> None:
    second = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    got: list[datetime] = []

    @app.task
    def work(given: datetime) -> None:
        got.append(given)

    work.enqueue(second)
    drain(app)

    assert [one.astimezone(UTC) for one in got] == [second.astimezone(UTC)]
