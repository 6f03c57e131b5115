"""What a soak found: as lines for a terminal, as JSON for programs, and as one page to look at."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from faultline.explain.svg import escaped
from faultline_proof.page import badge, checked, page, table
from faultline_proof.soak import chart
from faultline_proof.soak.judge import LOST, TWICE

if TYPE_CHECKING:
    from collections import Counter

    from faultline_proof.soak.chart import Sample
    from faultline_proof.verdict import Check

STYLE = f"""{chart.STYLE}
.figures {{ display: grid; gap: 1.5rem 2rem; margin: 2.25rem 0 0;
  grid-template-columns: repeat(auto-fit, minmax(min(14rem, 40%), 1fr)); }}
.figures div {{ border-top: 2px solid var(--line); padding-top: 0.7rem; }}
.figures dt {{ color: var(--soft); font-size: 0.85rem; }}
.figures dd {{ margin: 0; font-size: 1.7rem; font-weight: 600; line-height: 1.3; letter-spacing: -0.02em; }}
.figures small {{ font-size: 0.85rem; font-weight: 400; color: var(--soft); letter-spacing: 0; }}
td.name {{ width: 32%; color: var(--soft); }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    seconds: float
    workers: int
    seed: int
    #: Ctrl-C: nothing was waited for, so a job that is still open is none that was lost.
    interrupted: bool
    acknowledged: int
    #: What all processes saw, as the history checker has read it, and how long that took.
    operations: int
    judged_seconds: float
    drained_seconds: float | None
    faults: Counter[str]
    moments: list[tuple[float, str]]
    refusals: Counter[str]
    reaps: Counter[str]
    recoveries: list[float]
    outages: list[float]
    #: Submissions whose answer was lost; jobs of them that were there all the same, and that were not.
    unknown: int
    found: int
    absent: int
    #: Flows that succeeded.
    flows: int
    #: Moments of schedules that were decided.
    ticks: int
    #: Looks at the limited queue, and the most that any of them saw running.
    looks: int
    most_at_once: int
    #: Workers that ended by themselves.
    surprises: list[str]
    samples: list[Sample]
    checks: list[Check]

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def per_second(self) -> float:
        return self.acknowledged / self.seconds

    @property
    def verdict(self) -> str:
        if not self.passed:
            return "a promise was broken"
        return "interrupted, nothing broken so far" if self.interrupted else "passed"

    def found_for(self, claim: str) -> object:
        return next(check.found for check in self.checks if check.claim == claim)

    def lines(self) -> list[str]:
        shown = [f"{'ok    ' if check.holds else 'BROKEN'}  {check.claim}: {check.found}" for check in self.checks]
        return [
            f"soak: {self.verdict}",
            *(f"  {name}: {value}" for name, value in self._facts()),
            *(f"  {check}" for check in shown),
        ]

    def json(self) -> str:
        """All of it, with the lists of seconds as they were measured."""
        figures = {
            "passed": self.passed,
            "jobs_per_second": round(self.per_second, 1),
            "stale_writes_refused": sum(self.refusals.values()),
            "recovery_seconds_p50": _p50(self.recoveries),
            "recovery_seconds_max": max(self.recoveries, default=None),
        }
        counters = {"faults": self.faults, "refusals": self.refusals, "reaps": self.reaps}  # which asdict spoils
        return json.dumps({**figures, **asdict(self), **counters}, default=str)

    def html(self) -> str:
        kind = "held" if self.passed else "broken"
        body = [
            f"<header><h1>Faultline soak {badge(self.verdict, kind)}</h1>",
            f'<p class="soft">{escaped(self._setting())}</p></header>',
            self._figures(),
            self._picture(),
            "<section><h2>What was checked</h2>",
            checked(self.checks),
            "</section><section><h2>What happened</h2>",
            table([("", "name"), ("", "text")], [[escaped(name), escaped(value)] for name, value in self._facts()]),
            "</section>",
        ]
        return page("Faultline soak", "\n".join(body), style=STYLE)

    def _setting(self) -> str:
        return (
            f"{self.seconds:,.0f} seconds of trouble for {self.workers} worker processes on a PostgreSQL of their own. "
            f"Seed {self.seed}."
        )

    def _facts(self) -> list[tuple[str, str]]:
        facts = [
            ("time", f"{self.seconds:.0f} s, {self.workers} workers, seed {self.seed}"),
            ("acknowledged jobs", f"{self.acknowledged:,} ({self.per_second:,.0f} a second)"),
            ("flows that succeeded", f"{self.flows:,}"),
            ("moments of schedules decided", f"{self.ticks:,}"),
            ("the limited queue", f"looked at {self.looks:,} times, at most {self.most_at_once} ran at once"),
            ("operations in the history", f"{self.operations:,}, judged in {self.judged_seconds:.1f} s"),
            ("faults that took effect", _counted(self.faults)),
            ("stale writes refused", _counted(self.refusals)),
            ("leases taken back", _counted(self.reaps)),
            ("a killed worker's job ran again after", _spread(self.recoveries, "jobs")),
            ("the killed server answered again after", _spread(self.outages, "restarts")),
            (
                "submissions whose answer was lost",
                f"{self.unknown:,}; asked for, {self.found:,} of their jobs were there, {self.absent:,} were not",
            ),
        ]
        if self.surprises:
            facts.append(("workers that ended by themselves", f"{len(self.surprises)}; the last: {self.surprises[-1]}"))
        return facts

    def _picture(self) -> str:
        drawn = chart.draw(self.samples, self.moments, told=f"Faults: {_counted(self.faults)}.")
        caption = "Jobs finished each second, and the faults that took effect meanwhile."
        return f'<figure><div class="scroll" tabindex="0">{drawn}</div><figcaption>{caption}</figcaption></figure>'

    def _figures(self) -> str:
        p50 = _p50(self.recoveries)
        figures = [
            ("acknowledged jobs", f"{self.acknowledged:,}", f"{self.per_second:,.0f} a second"),
            ("lost", str(self.found_for(LOST)), ""),
            ("duplicated", str(self.found_for(TWICE)), ""),
            ("operations checked", f"{self.operations:,}", "of all processes"),
            ("faults", f"{sum(self.faults.values()):,}", "that took effect"),
            ("stale writes refused", f"{sum(self.refusals.values()):,}", ""),
            (
                "recovery",
                "none" if p50 is None else f"{p50:.1f} s",
                "" if p50 is None else f"p50; at most {max(self.recoveries):.1f} s",
            ),
        ]
        items = "".join(
            f"<div><dt>{name}</dt><dd>{escaped(value)}</dd><small>{escaped(more)}</small></div>"
            for name, value, more in figures
        )
        return f'<dl class="figures">{items}</dl>'


def _counted(counter: Counter[str]) -> str:
    parts = ", ".join(f"{what} {times:,}" for what, times in counter.most_common())
    return f"{sum(counter.values()):,} ({parts})" if parts else "none"


def _spread(seconds: list[float], of: str) -> str:
    if not seconds:
        return "not seen"
    return f"p50 {median(seconds):.1f} s, at most {max(seconds):.1f} s ({len(seconds):,} {of})"


def _p50(seconds: list[float]) -> float | None:
    return round(median(seconds), 3) if seconds else None
