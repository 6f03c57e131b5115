"""The section of the page that compares flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench import plots
from bench.report import OURS, Result, better, digits, gaps, measured, measured_on, shown, versions

if TYPE_CHECKING:
    from pathlib import Path

# Name, workload, figure, unit, whether more is better.
COMPARED = (
    ("steps of one flow", "steps", "rate", "steps/s", True),
    ("flows of three steps and a sleep", "short", "rate", "flows/s", True),
    ("children and their results", "fan", "seconds", "s", False),
    ("signal to running again, p50", "answer", "p50_ms", "ms", False),
    ("signal to running again, p99", "answer", "p99_ms", "ms", False),
    ("after kill -9, started again at once", "killed", "seconds", "s", False),
    ("after kill -9, another worker beside", "beside", "seconds", "s", False),
    ("WAL of a flow of three steps", "short", "wal", "B", False),
    ("PostgreSQL's CPU of such a flow", "short", "store_cpu", "µs", False),
    ("worker's CPU of such a flow", "short", "client_cpu", "µs", False),
)


def flow_peers(told: dict[str, Any], pictures: Path) -> str:
    result = Result(told)
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [
        measured_on(told),
        _picture(result, pictures),
        _rates(result),
        _times_ours(result),
        _deaths(result),
        _costs(result),
    ]
    parts += [better(result, COMPARED), gaps(result), versions(told)]
    # Two sections of one page must not have the same title.
    page = "\n\n".join(part for part in parts if part)
    return page.replace("### Where a peer is better", "### Where a peer's flows are better").replace(
        "### What was not measured", "### Whose flows were not measured"
    )


def _picture(result: Result, pictures: Path) -> str:
    title = "Flows of three steps and a durable sleep, one worker process"
    rows = [
        plots.Bar(system, [one.median], one.least, one.most, ours=system == OURS)
        for system in result.ranked("short", "rate")
        if (one := result.spread(system, "short", "rate"))
    ]
    if not rows:
        return ""
    (pictures / "flows.svg").write_text(plots.bars(title, "flows/s", rows))
    return f"![{title}]({pictures.name}/flows.svg)"


def _children(result: Result) -> str:
    found = [one["children"] for one in result.told["measurements"] if one.get("children")]
    return f"{max(found, default=0):,}"


def _rates(result: Result) -> str:
    head = [
        "one worker process",
        "steps/s in one flow",
        "flows/s: three steps, a sleep",
        f"{_children(result)} children and their results, s",
        "signal to running again, p50 ms",
        "p99 ms",
    ]
    asked = (("steps", "rate"), ("short", "rate"), ("fan", "seconds"), ("answer", "p50_ms"), ("answer", "p99_ms"))
    rows = [
        [system, *(shown(result.spread(system, workload, figure)) for workload, figure in asked)]
        for system in result.ranked("short", "rate")
    ]
    return measured(head, rows)


def _times_ours(result: Result) -> str:
    """How many times as fast, or as slow, Faultline is."""
    asked = (("steps", "rate", True), ("short", "rate", True), ("fan", "seconds", False), ("answer", "p50_ms", False))
    rows = []
    for system in result.ranked("short", "rate"):
        if system == OURS:
            continue
        row = [system]
        for workload, figure, more in asked:
            ours, theirs = result.median(OURS, workload, figure), result.median(system, workload, figure)
            row.append("—" if not ours or not theirs else f"{ours / theirs if more else theirs / ours:.1f}×")
        rows.append(row)
    return measured(["Faultline to it, in this run", "steps", "flows", "children", "signal"], rows)


def _deaths(result: Result) -> str:
    head = [
        "from `kill -9` to the step running again",
        "started again at once, s",
        "another worker beside, s",
        "recorded steps that ran again",
    ]
    rows = []
    for system in result.systems:
        found = {
            one["workload"]: one
            for one in result.told["measurements"]
            if one["system"] == system and one["workload"] in ("killed", "beside") and "error" not in one
        }
        again = sum(one["steps_again"] for one in found.values())
        times = [_death(found.get(workload)) for workload in ("killed", "beside")]
        rows.append([system, *times, f"{again}" if found else "—"])
    return measured(head, rows)


def _death(one: dict[str, Any] | None) -> str:
    if one is None:
        return "—"
    if not one["resumed"]:
        return f"not within {one['waited_seconds']:g} s"
    some = "" if one["resumed"] == one["flows"] else f", {one['resumed']} of {one['flows']} flows"
    return f"**{digits(one['seconds'])}** (worst {digits(one['worst_seconds'])}{some})"


def _costs(result: Result) -> str:
    figures = ("wal", "store_cpu", "client_cpu")
    rows = [
        [system, *(shown(result.median(system, "short", figure)) for figure in figures)]
        for system in result.ranked("short", "store_cpu", most_first=False)
    ]
    head = ["a flow of three steps and a sleep", "WAL, B", "PostgreSQL's CPU, µs", "worker's CPU, µs"]
    return measured(head, rows)
