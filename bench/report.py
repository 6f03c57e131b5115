"""Write results as tables and pictures into the page on performance. `python -m bench.report RESULT.json …`; with `--print`
they are only printed, with `--old` those are named that were measured long ago.

Each result names its part (peers, limit, growth, flows, flow_peers, limits, limit_peers) and fills the section between that
part's markers. The rest of the file is written by hand and stays. A part that has no result yet keeps what stands there.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import plots, safety
from bench.catalog import HERE

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = HERE.parent
PAGE = ROOT / "docs/explanation/performance.md"
PICTURES = "performance"
OURS = "Faultline"
#: The figures of a result that is older may no longer be true.
OLD_COMMITS = 100


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float
    rounds: int

    def __str__(self) -> str:
        if self.rounds == 1:
            return f"**{digits(self.median)}**"
        return f"**{digits(self.median)}** ({digits(self.least)}–{digits(self.most)})"


class Result:
    """The measurements of a run, by system and workload."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.systems: list[str] = [system["name"] for system in told["systems"]]

    def spread(self, system: str, workload: str, figure: str) -> Spread | None:
        found = [
            float(one[figure])
            for one in self.told["measurements"]
            if one["system"] == system and one["workload"] == workload and one.get(figure) is not None
        ]
        return Spread(statistics.median(found), min(found), max(found), len(found)) if found else None

    def median(self, system: str, workload: str, figure: str) -> float | None:
        found = self.spread(system, workload, figure)
        return found.median if found else None

    def on_postgresql(self) -> list[str]:
        return [system["name"] for system in self.told["systems"] if system["store"] == "postgresql"]

    def store(self, system: str) -> str:
        return next(str(one["store"]) for one in self.told["systems"] if one["name"] == system)

    def ranked(self, workload: str, figure: str, *, most_first: bool = True) -> list[str]:
        """The systems by that figure, those without one last."""
        known = [(self.median(system, workload, figure), system) for system in self.systems]
        have = sorted((one for one in known if one[0] is not None), reverse=most_first)
        return [system for _, system in have] + [system for value, system in known if value is None]


# Name, workload, figure, unit, whether more is better.
COMPARED = (
    ("no-op drain, one process", "drain_1", "rate", "jobs/s", True),
    ("no-op drain, two processes", "drain_2", "rate", "jobs/s", True),
    ("10 ms I/O jobs", "io", "rate", "jobs/s", True),
    ("latency on an idle system, p50", "idle", "p50_ms", "ms", False),
    ("latency on an idle system, p99", "idle", "p99_ms", "ms", False),
    ("latency at 500 jobs/s, p99", "steady", "p99_ms", "ms", False),
    ("computing jobs, share of ideal", "cpu", "efficiency", "", True),
    ("bulk enqueue", "drain_1", "bulk_rate", "jobs/s", True),
    ("single enqueues of one client", "idle", "single_rate", "jobs/s", True),
    ("drain with 1 KB of arguments", "args_1k", "rate", "jobs/s", True),
    ("drain with 100 KB of arguments", "args_100k", "rate", "jobs/s", True),
    ("WAL of an enqueue", "drain_1", "bulk_wal", "B/job", False),
    ("WAL of a run", "drain_1", "run_wal", "B/job", False),
    ("PostgreSQL's CPU of a run", "drain_1", "store_cpu", "µs/job", False),
    ("worker's CPU of a run", "drain_1", "client_cpu", "µs/job", False),
)


def peers(told: dict[str, Any], pictures: Path) -> str:
    result = Result(told)
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [
        measured_on(told),
        *_draw(result, pictures),
        _drains(result),
        _latencies(result),
        _other(result),
        _costs(result),
    ]
    parts += [better(result, COMPARED), gaps(result), versions(told)]
    return "\n\n".join(part for part in parts if part)


def measured_on(told: dict[str, Any]) -> str:
    machine, stores = told["machine"], told["stores"]
    stored = ", ".join(
        f"{ {'postgresql': 'PostgreSQL', 'redis': 'Redis'}[name] } {store['version']}" for name, store in stores.items()
    )
    settings = "; ".join(
        f"{name}: " + ", ".join(f"{key.lstrip('-')} {value or 'off'}" for key, value in store["settings"].items())
        for name, store in stores.items()
    )
    quick = " **A quick run: fewer systems and rounds.**" if told["quick"] else ""
    return (
        f"{when_measured(machine)} on {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:g} GB; "
        f"{stored}; {settings}.{quick} Bold: the median of the rounds, in brackets the least and the most."
    )


def when_measured(machine: dict[str, Any]) -> str:
    return f"Measured {machine['at'][:10]}" + (f" at commit {machine['commit']}" if machine.get("commit") else "")


def old(path: Path) -> str | None:
    """How old a result is that was measured more than so many commits ago. None: it is not, or nobody can know."""
    told = json.loads(path.read_text())
    command = ["git", "-C", str(ROOT), "rev-list", "--count", f"{told['machine'].get('commit')}..HEAD"]
    counted = subprocess.run(command, capture_output=True, text=True, check=False)
    if counted.returncode != 0 or int(counted.stdout) <= OLD_COMMITS:
        return None
    when = when_measured(told["machine"]).lower()
    return f"warning: {path.name} was {when}, {int(counted.stdout)} commits ago; measure again: make bench"


def _draw(result: Result, pictures: Path) -> list[str]:
    drawings = []
    rows = [
        plots.Bar(system, [one.median], one.least, one.most, ours=system == OURS)
        for system in result.ranked("drain_1", "rate")
        if (one := result.spread(system, "drain_1", "rate"))
    ]
    drawings += _picture(
        pictures,
        "drain",
        "No-op jobs, one worker process",
        plots.bars("No-op jobs, one worker process", "jobs/s", rows),
        rows,
    )
    rows = [
        plots.Bar(system, [one.median], one.least, one.most, ours=system == OURS)
        for system in result.ranked("idle", "p99_ms", most_first=False)
        if (one := result.spread(system, "idle", "p99_ms"))
    ]
    title = "Enqueue to start on an idle system, p99"
    drawings += _picture(pictures, "latency", title, plots.bars(title, "ms", rows, logarithmic=True), rows)
    rows = [
        plots.Bar(system, [store, client])
        for system in result.ranked("drain_1", "store_cpu", most_first=False)
        if system in result.on_postgresql()
        and (store := result.median(system, "drain_1", "store_cpu")) is not None
        and (client := result.median(system, "drain_1", "client_cpu")) is not None
    ]
    rows.sort(key=lambda row: sum(row.parts))
    title = "CPU to run one no-op job, systems on PostgreSQL"
    drawn = plots.bars(title, "µs/job", rows, legend=["PostgreSQL", "worker"]) if rows else ""
    return drawings + _picture(pictures, "cpu", title, drawn, rows)


def _picture(pictures: Path, name: str, title: str, drawn: str, rows: list[plots.Bar]) -> list[str]:
    if not rows:
        return []
    (pictures / f"{name}.svg").write_text(drawn)
    return [f"![{title}]({pictures.name}/{name}.svg)"]


def measured(head: list[str], rows: list[list[str]]) -> str:
    """A table without the columns that nobody was measured in; nothing if that leaves no figures."""
    kept = [at for at in range(len(head)) if any(row[at] not in ("—", "") for row in rows)]
    if len([at for at in kept if head[at] != "store"]) < 2:
        return ""
    return tabled([head[at] for at in kept], [[row[at] for at in kept] for row in rows])


def tabled(head: list[str], rows: list[list[str]]) -> str:
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)])


def shown(value: object) -> str:
    return "—" if value is None else digits(value) if isinstance(value, float) else str(value)


def _drains(result: Result) -> str:
    rows = []
    ours = result.median(OURS, "drain_1", "rate")
    for system in result.ranked("drain_1", "rate"):
        one = result.median(system, "drain_1", "rate")
        share = None if ours is None or one is None else f"{ours / one:.1f}×"
        rows.append(
            [
                system,
                result.store(system),
                shown(result.spread(system, "drain_1", "rate")),
                shown(result.spread(system, "drain_2", "rate")),
                shown(result.median(system, "drain_1", "settle_seconds")),
                "" if system == OURS else shown(share),
            ]
        )
    head = [
        "no-op jobs",
        "store",
        "one process, jobs/s",
        "two processes, jobs/s",
        "last one recorded after, s",
        "Faultline to it",
    ]
    return measured(head, rows)


def _latencies(result: Result) -> str:
    rows = []
    for system in result.ranked("idle", "p50_ms", most_first=False):
        parts = [result.median(system, "steady", f"{part}_cpu") for part in ("worker", "store", "producer")]
        rows.append(
            [
                system,
                shown(result.spread(system, "idle", "p50_ms")),
                shown(result.spread(system, "idle", "p99_ms")),
                shown(result.median(system, "steady", "sent_rate")),
                shown(result.median(system, "steady", "p50_ms")),
                shown(result.median(system, "steady", "p99_ms")),
                " + ".join(shown(part) for part in parts) if any(part is not None for part in parts) else "—",
            ]
        )
    head = [
        "enqueue to start",
        "idle, p50 ms",
        "idle, p99 ms",
        "500/s, sent",
        "500/s, p50 ms",
        "500/s, p99 ms",
        "500/s, CPU µs/job: worker + store + producer",
    ]
    return measured(head, rows)


def _other(result: Result) -> str:
    rows = []
    for system in result.ranked("io", "rate"):
        share = result.median(system, "cpu", "efficiency")
        rows.append(
            [
                system,
                shown(result.spread(system, "io", "rate")),
                "—" if share is None else f"{100 * share:.0f} %",
                shown(result.median(system, "drain_1", "bulk_rate")),
                shown(result.median(system, "idle", "single_rate")),
                shown(result.median(system, "args_1k", "rate")),
                shown(result.median(system, "args_100k", "rate")),
            ]
        )
    head = [
        "jobs/s",
        "10 ms I/O",
        "computing, of ideal",
        "bulk enqueue",
        "single enqueue",
        "1 KB arguments",
        "100 KB arguments",
    ]
    return measured(head, rows)


def _costs(result: Result) -> str:
    rows = []
    for system in result.ranked("drain_1", "store_cpu", most_first=False):
        if system in result.on_postgresql():
            figures = ("bulk_wal", "run_wal", "store_cpu", "client_cpu", "transactions")
            rows.append([system, *(shown(result.median(system, "drain_1", figure)) for figure in figures)])
    head = [
        "on PostgreSQL, per job",
        "WAL to enqueue, B",
        "WAL to run, B",
        "PostgreSQL's CPU, µs",
        "worker's CPU, µs",
        "transactions",
    ]
    return measured(head, rows)


def better(result: Result, compared: Sequence[tuple[str, str, str, str, bool]]) -> str:
    """Where a peer is ahead of us, by more than the noise of a run."""
    lines = []
    for name, workload, figure, unit, more in compared:
        ours = result.median(OURS, workload, figure)
        if ours is None:
            continue
        ahead = []
        for system in result.ranked(workload, figure, most_first=more):
            theirs = result.median(system, workload, figure)
            if system != OURS and theirs is not None and (theirs > 1.03 * ours if more else theirs < 0.97 * ours):
                ahead.append(f"{system} {digits(theirs)}")
        if ahead:
            lines.append(f"- {name}{', ' + unit if unit else ''}: {', '.join(ahead)}; Faultline {digits(ours)}")
    return "### Where a peer is better\n\n" + ("\n".join(lines) if lines else "In none of the figures of this run.")


def gaps(result: Result) -> str:
    lines = [f"- {name}: {why}" for name, why in result.told["absent"].items()]
    lines += [f"- {system['name']}: {system['missing']}" for system in result.told["systems"] if system["missing"]]
    for one in result.told["measurements"]:
        if "error" in one and one["round"] == 0:
            said = re.sub(r"\s+", " ", one["error"])
            lines.append(f"- {one['system']}, {one['workload']}: {said}")
    cut = sorted({f"{one['system']} ({one['workload']})" for one in result.told["measurements"] if one.get("cut")})
    if cut:
        lines.append(f"- cut at the time limit, the rate is that of the jobs until then: {', '.join(cut)}")
    return "### What was not measured\n\n" + "\n".join(lines)


def versions(told: dict[str, Any]) -> str:
    lines = []
    for system in told["systems"]:
        lines.append(f"- **{system['name']}** {system['version']}")
        lines += [f"  - {one['setting']} ({one['source']})" for one in system["settings"]]
    return (
        "<details><summary>Versions and settings, and where each setting is documented</summary>\n\n"
        + "\n".join(lines)
        + "\n\n</details>"
    )


def figures(told: dict[str, Any], pictures: Path) -> str:
    """A result in the shape of `faultline bench … --json`: figures, tables, curves."""
    pictures.mkdir(parents=True, exist_ok=True)
    machine = told["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, PostgreSQL {machine['postgres']}"
    parts = [f"{when_measured(machine)} on {where}."]
    if told.get("figures"):
        rows = [
            [
                one["name"],
                shown(one["value"]),
                one["unit"],
                one.get("goal", ""),
                {True: "yes", False: "**no**"}.get(one.get("good"), ""),
            ]
            for one in told["figures"]
        ]
        parts.append(tabled(["", "value", "unit", "goal", "met"], rows))
    for table in told.get("tables", []):
        rows = [[shown(cell) for cell in row] for row in table["rows"]]
        parts += [f"**{table['name']}**", tabled(table["columns"], rows)]
    curves = enumerate(told.get("curves", []), start=1)
    parts += [_curve(curve, f"{told['part']}-{number}", pictures) for number, curve in curves]
    return "\n\n".join(parts)


def _curve(curve: dict[str, Any], name: str, pictures: Path) -> str:
    points = [(float(point["at"]), float(point["value"])) for point in curve["points"] if point.get("value") is not None]
    goal = f" Goal: {curve['goal']}: {'met' if curve.get('ok') else 'missed'}." if curve.get("goal") else ""
    missing = [
        f"{digits(float(point['at']))}: {point.get('missing', 'no value')}"
        for point in curve["points"]
        if point.get("value") is None
    ]
    words = [f"**{curve['name']}** ({curve['unit']}).{goal}" + (f" Not measured: {'; '.join(missing)}." if missing else "")]
    if len(points) > 1:
        (pictures / f"{name}.svg").write_text(
            plots.lines(curve["name"], curve["unit"], curve["varies"], [(curve["unit"], points)])
        )
        words.append(f"![{curve['name']}]({pictures.name}/{name}.svg)")
    extra = [
        key
        for key in dict.fromkeys(key for point in curve["points"] for key in point)
        if key not in ("at", "value", "missing")
    ]
    rows = [
        [shown(float(point["at"])), shown(point.get("value")), *(shown(point.get(key)) for key in extra)]
        for point in curve["points"]
    ]
    words.append(tabled([curve["varies"], curve["unit"], *(key.replace("_", " ") for key in extra)], rows))
    return "\n\n".join(words)


def fill(page: str, part: str, text: str) -> str:
    """Put the text between the markers of that part."""
    begin, end = f"<!-- bench:{part} -->", f"<!-- /bench:{part} -->"
    if begin not in page or end not in page:
        raise SystemExit(f"docs/explanation/performance.md has no place for {part}: it needs the lines {begin} and {end}")
    return page[: page.index(begin) + len(begin)] + f"\n{text}\n" + page[page.index(end) :]


def made(told: dict[str, Any], pictures: Path) -> str:
    """The section of that result."""
    from bench.flows.report import flow_peers  # noqa: PLC0415 - it is made with what stands here
    from bench.limits import limit_peers  # noqa: PLC0415 - likewise

    return {"peers": peers, "flow_peers": flow_peers, "limit_peers": limit_peers}.get(told["part"], figures)(told, pictures)


def write(results: list[Path], page: Path = PAGE) -> None:
    text = fill(page.read_text(), "safety", safety.markdown())
    for path in results:
        told = json.loads(path.read_text())
        text = fill(text, told["part"], made(told, page.parent / PICTURES))
    page.write_text(text)


def digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def main(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        raise SystemExit(__doc__)
    if words[:1] == ["--print"]:
        for told in (json.loads(Path(word).read_text()) for word in words[1:]):
            with tempfile.TemporaryDirectory() as folder:
                print(made(told, Path(folder)))
        return
    if words[:1] == ["--old"]:
        print(*filter(None, (old(Path(word)) for word in words[1:])), sep="\n")
        return
    write([Path(word) for word in words])


if __name__ == "__main__":
    main(sys.argv[1:])
