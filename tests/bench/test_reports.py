"""The long parts of the bench, in short: they measure what they say, and one failure does not take the rest with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from faultline_proof.bench import growth, limit, steady
from faultline_proof.bench.growth.points import Effort, growth_of, points
from faultline_proof.bench.protocol import Figure
from faultline_proof.bench.report import Curve, Report, Table

if TYPE_CHECKING:
    from faultline_proof.bench.report import Point

pytestmark = pytest.mark.long

KEYS = {"part", "quick", "machine", "figures", "tables", "curves"}


def quiet(_: str) -> None:
    pass


def test_a_steady_load_is_looked_at_in_all_its_parts(dsn: str) -> None:
    report = steady.measure(dsn, steady.Plan(minutes=0.06, per_second=500), tell=quiet)

    values = {curve.name: [point["value"] for point in curve.points] for curve in report.curves}
    assert set(values) == {watched.name for watched in steady.WATCHED.values()}
    assert {len(found) for found in values.values()} == {16}
    assert values["ledger, rows"][-1] > 0
    assert values["memory of the worker"][-1] > 10


def test_what_grows_is_said_to_grow_and_what_goes_up_and_down_is_not() -> None:
    flat, growing = [50.0, 51.0, 50.5, 51.5] * 4, [50.0 + number for number in range(16)]

    assert steady.judged("worker_memory", flat).good is True
    assert steady.judged("worker_memory", growing).good is False
    assert steady.judged("worker_memory", growing[:3]).good is None


def test_a_verb_is_known_by_the_records_that_it_writes(dsn: str) -> None:
    written = limit.written(dsn, 300, 100)

    kinds = {verb: {record.kind for record in records} for verb, records in written.items()}
    assert "Heap/INSERT" in kinds["enqueue"]
    assert "Heap/DELETE" in kinds["complete"]


def test_a_worker_is_taken_apart(dsn: str) -> None:
    report = Report("limit", {})

    limit.taken_apart(dsn, limit.Effort(jobs=4000, rounds=1), report)

    statements, microseconds = report.tables
    assert {"claim", "complete", "heartbeat"} <= {row[0] for row in statements.rows}
    parts = {str(row[0]): float(row[1]) for row in microseconds.rows}
    assert parts["worker: all of it"] > 1
    assert parts["worker: other"] < 0.2 * parts["worker: all of it"]


def test_a_curve_has_a_cost_at_every_point(dsn: str) -> None:
    (curve,) = growth.measure(dsn, quick=True, only="delayed", tell=quiet).curves

    assert [point["at"] for point in curve.points] == [0, 50]
    assert all(point["value"] > 0 for point in curve.points)


def test_a_point_that_fails_leaves_the_others() -> None:
    def measure(at: int) -> Point:
        return {"value": 10 / at}

    found = points((5, 0, 1), measure)

    assert [point["value"] for point in found] == [2, None, 10]
    assert "ZeroDivisionError" in found[1]["missing"]
    assert growth_of(found) == 5
    assert Effort(quick=True).small((1, 2, 3)) == (1, 2)


def test_a_report_is_told_in_json_and_in_lines() -> None:
    report = Report(
        "growth",
        {"cores": 2},
        figures=[Figure("bytes", float("nan"), "B", "under 5", good=False)],
        tables=[Table("records", ["kind", "bytes"], [["insert", 12.5]])],
        curves=[Curve("cost", "jobs", "µs", [{"at": 10, "value": 1.5, "cpu_micros": 2.0}], "the last within 2", ok=True)],
    )

    told = json.loads(json.dumps(report.told(), allow_nan=False))
    lines = "\n".join(report.lines())

    assert set(told) == KEYS
    assert told["figures"][0]["value"] is None
    assert "MISSED" in lines
    assert "cost (µs); goal: the last within 2: ok" in lines
    assert "cpu micros" in lines
