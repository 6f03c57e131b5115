"""A drill as a picture that a person can read: one lane for each epoch, and what became of it.

One page without scripts. All that is horizontal is a percentage of time, so the picture fits any width while its text
keeps its size; below the width that labels need, it scrolls.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from faultline.drawing import svg
from faultline.drawing.svg import SHAPES, Label, bar, escaped, in_rows, label_at, line, text, ticks
from faultline_proof import epochs
from faultline_proof.drills import DRILLS
from faultline_proof.page import badge, checked, page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faultline_proof.epochs import Epoch, Moment, Story
    from faultline_proof.verdict import Verdict

JOBS_MAX = 4
LANES_MAX = 12
_FAULTS_MAX = 16
_ROW = 16
_LEFT, _RIGHT = 1.5, 98.0  # per cent: room for a mark at either end

STYLE = f"""{svg.STYLE}.fault {{ stroke: var(--fault); stroke-dasharray: 2 3; }} .lanes .fault-name {{ fill: var(--fault); }}
.lease {{ fill: var(--lease); opacity: 0.28; }} .run {{ fill: var(--lease); }} .beyond {{ fill: var(--pale); }}
.beat {{ stroke: var(--lease); stroke-width: 1.5; }}
.link {{ stroke: var(--soft); stroke-width: 1.25; }} .head {{ fill: var(--soft); }}
.claim {{ fill: var(--panel); stroke: var(--lease); stroke-width: 2; }}
.reap {{ stroke: var(--ink); stroke-width: 2; }}
.refused {{ stroke: var(--bad); stroke-width: 3; stroke-linecap: round; fill: none; }}
.lanes .refused-name {{ fill: var(--bad); font-weight: 600; }}
.ledger {{ fill: var(--good); }} .lanes .ledger-name {{ fill: var(--good); font-weight: 600; }}
.end {{ fill: var(--panel); stroke: var(--soft); stroke-width: 2; }}
.death {{ stroke: var(--fault); stroke-width: 3; stroke-linecap: round; }}
"""

_LEGEND = {
    "claim": "claimed",
    "run": "running, holds the lease",
    "beat": "heartbeat",
    "reap": "reaped: the lease is over",
    "beyond": "still runs, without a lease",
    "refused": "write refused",
    "ledger": "row in the ledger",
}
_ENDS = {"completed": "ledger"}
_FINAL = ("refused-name", "ledger-name")
_END_WORDS = {"completed": "in the ledger", "failed": "attempt failed", "released": "given back"}


def render(verdicts: list[Verdict]) -> str:
    """The page of these drills."""
    held = sum(verdict.passed for verdict in verdicts)
    passed = f"{held} of {len(verdicts)} passed. One lane for each epoch: a job in the hands of one worker, under one token."
    header = f'<header><h1>Faultline drills</h1><p class="soft">{passed}</p>{_legend()}</header>'
    sections = [_section(verdict, number) for number, verdict in enumerate(verdicts, start=1)]
    return page("Faultline drills", "\n".join([header, *sections]), style=STYLE)


def _section(verdict: Verdict, number: int) -> str:
    drill = DRILLS.get(verdict.drill)
    kind, word = ("held", "passed") if verdict.passed else ("broken", "failed")
    if verdict.skipped is not None:
        kind, word = "skipped", "not played"
    parts = [f"<h2>{escaped(verdict.drill)} {badge(word, kind)}</h2>"]
    if drill is not None:
        parts.append(f'<p class="soft">{escaped(drill.story[:1].upper() + drill.story[1:])}.</p>')
    if verdict.skipped is not None:
        parts.append(f"<p>{escaped(verdict.skipped)}</p>")
    else:
        story = epochs.read(verdict.trace)
        parts += [_figure(verdict.drill, story, number)] if story.jobs else []
        parts += [_faults(verdict), _checks(verdict)]
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _faults(verdict: Verdict) -> str:
    times = {fault: f" ({times} times)" if times > 1 else "" for fault, times in verdict.faults.items()}
    items = "".join(f"<li>{escaped(fault)}{often}</li>" for fault, often in times.items())
    return "<h3>Faults that took effect</h3>" + (f"<ul>{items}</ul>" if items else "<p>None, so nothing was shown.</p>")


def _checks(verdict: Verdict) -> str:
    return "<h3>What was checked</h3>" + checked(verdict.checks)


def _legend() -> str:
    items = [
        f'<li><svg width="20" height="20" viewBox="-10 {1 if shape == "beat" else -10} 20 20" aria-hidden="true">'
        f"{SHAPES[shape]}</svg>{word}</li>"
        for shape, word in _LEGEND.items()
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _figure(name: str, story: Story, number: int) -> str:
    shown = story.most_telling(JOBS_MAX)
    drawing = Drawing(shown, story.faults)
    told = [_told(epoch) for job in shown for epoch in job]
    items = "".join(f"<li>{sentence}</li>" for sentence in told)
    return (
        f'<figure><div class="scroll" tabindex="0">'
        f'<svg class="lanes" role="img" height="{drawing.height}" aria-labelledby="t{number} d{number}">'
        f'<title id="t{number}">Timeline of {escaped(name)}</title><desc id="d{number}">{" ".join(told)}</desc>'
        f"{drawing.markup()}</svg></div>\n<figcaption>{_caption(story, shown)}</figcaption></figure>\n"
        f"<details><summary>The same in words</summary><ol>{items}</ol></details>"
    )


def _caption(story: Story, shown: list[list[Epoch]]) -> str:
    words = ["Seconds from the start."]
    telling = story.telling()
    hidden = len(story.jobs) - len(shown)
    if hidden:
        more = telling - len(shown)
        words.append(f"{len(shown)} of {len(story.jobs):,} jobs are shown; {hidden:,} are not:")
        simple = f"{hidden - max(more, 0):,} that ran once and ended"
        words.append(f"{more:,} more that were taken over, and {simple}." if more > 0 else f"{simple}.")
    if any(len(job) > LANES_MAX for job in shown):
        words.append(f"Of a job with more than {LANES_MAX} epochs the last {LANES_MAX} are drawn.")
    if len(story.faults) > _FAULTS_MAX:
        words.append(f"{len(story.faults) - _FAULTS_MAX:,} more faults are not drawn.")
    return " ".join(words)


def _told(epoch: Epoch) -> str:
    """One epoch in words, for those who do not see the picture."""
    facts: list[tuple[float, str]] = []
    if epoch.claimed is not None:
        facts.append((epoch.claimed, "claimed"))
    if epoch.started is not None:
        facts.append((epoch.started, "started"))
    if epoch.renewals:
        facts.append((epoch.renewals[-1], f"renewed {len(epoch.renewals)} times, last"))
    if epoch.died is not None:
        facts.append((epoch.died, "worker killed"))
    if epoch.reaped is not None:
        facts.append((epoch.reaped.at, f"reaped ({_words(epoch.reaped.what)})"))
    if epoch.lost is not None:
        facts.append((epoch.lost.at, f"the worker noticed the loss ({_words(epoch.lost.what)})"))
    facts += [(refusal.at, f"write refused ({_words(refusal.what)})") for refusal in epoch.refused]
    if epoch.ended is not None:
        facts.append((epoch.ended.at, _END_WORDS[epoch.ended.what]))
    told = ", ".join(f"{what} at {at:.2f} s" for at, what in sorted(facts))
    return escaped(f"Job {epoch.job_id}, token {epoch.token}, worker {epoch.worker}: {told}.")


def _words(reason: str) -> str:
    return reason.replace("_", " ")


class Drawing:
    """The inside of the picture, put together from top to bottom; what is drawn later lies above."""

    def __init__(self, jobs: Sequence[list[Epoch]], faults: Sequence[Moment]) -> None:
        self._faults = faults[:_FAULTS_MAX]
        drawn = [job[-LANES_MAX:] for job in jobs]
        times = [at for job in drawn for epoch in job for at in epoch.times] + [fault.at for fault in self._faults]
        self._from = min(times)
        self._to = max(*times, self._from + 0.001)
        self._below: list[str] = []
        self._above: list[str] = []
        top = bottom = self._draw_fault_names()
        for job in drawn:
            bottom = self._draw_job(job, bottom)
        self._draw_axis(top, bottom)
        self.height = bottom + 28

    def markup(self) -> str:
        return "".join(self._below) + "".join(self._above)

    def x(self, at: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (at - self._from) / (self._to - self._from)

    def _draw_fault_names(self) -> float:
        labels = [self._label(fault.at, fault.what, "fault-name", beside=5) for fault in self._faults]
        rows = in_rows(labels)
        for number, row in enumerate(rows):
            self._above += [text(label, 12 + number * _ROW) for label in row]
        return len(rows) * _ROW + 6 if rows else 0

    def _draw_axis(self, top: float, bottom: float) -> None:
        grid = []
        for at in ticks(self._from, self._to):
            grid.append(line(self.x(at), top, self.x(at), bottom, "grid"))
            self._above.append(text(Label(self.x(at), f"{at:g} s", "middle", "axis"), bottom + 20))
        lines = [line(self.x(fault.at), 4, self.x(fault.at), bottom, "fault") for fault in self._faults]
        self._below[:0] = [*grid, line(0, bottom, 100, bottom, "edge"), *lines]

    def _draw_job(self, job: list[Epoch], y: float) -> float:
        self._above.append(text(Label(0, f"job {job[0].job_id}", "start", "job"), y + 16))
        y += 26
        middles: list[float] = []
        for epoch in job:
            middles.append(y + 30)
            y = self._draw_lane(epoch, y)
        for (before, start), (after, end) in pairwise(zip(job, middles, strict=True)):
            self._draw_takeover(before, start, after, end)
        return y + 14

    def _draw_lane(self, epoch: Epoch, y: float) -> float:
        middle = y + 30
        self._above.append(
            text(Label(0, f"token {epoch.token} \N{MIDDLE DOT} worker {epoch.worker}", "start", "who"), y + 14)
        )
        self._draw_bars(epoch, middle)
        rows = in_rows(self._draw_marks(epoch, middle), nearest=_FINAL)
        for number, row in enumerate(rows):
            self._above += [text(label, middle + 26 + number * _ROW) for label in row]
        return middle + 22 + len(rows) * _ROW

    def _draw_bars(self, epoch: Epoch, middle: float) -> None:
        first = epoch.times[0]
        over = epoch.activity_over
        lease_over = epoch.lease_over if epoch.lease_over is not None else max(over, epoch.times[-1])
        self._above.append(self._bar(first, lease_over, middle, 4, "lease"))
        if epoch.started is not None:
            self._above.append(self._bar(epoch.started, min(over, lease_over), middle, 12, "run"))
            if over > lease_over:
                self._above.append(self._bar(lease_over, over, middle, 12, "beyond"))
        self._above += [self._mark("beat", at, middle, "heartbeat") for at in epoch.renewals]

    def _draw_marks(self, epoch: Epoch, middle: float) -> list[Label]:
        labels = []
        if epoch.claimed is not None:
            self._above.append(self._mark("claim", epoch.claimed, middle, "claimed"))
        if epoch.died is not None:
            self._above.append(self._mark("death", epoch.died, middle, "worker killed"))
            labels.append(self._label(epoch.died, "killed", "fault-name"))
        if epoch.reaped is not None:
            at, why = epoch.reaped.at, _words(epoch.reaped.what)
            self._above.append(self._mark("reap", at, middle, f"reaped: {why}"))
            labels.append(self._label(at, f"reaped: {why}", "reap-name", beside=6))
        elif epoch.lost is not None:
            at, why = epoch.lost.at, _words(epoch.lost.what) or "lease lost"
            self._above.append(self._mark("reap", at, middle, f"the worker let go: {why}"))
            labels.append(self._label(at, why, "reap-name", beside=6))
        for refusal in epoch.refused:
            self._above.append(self._mark("refused", refusal.at, middle, f"write refused: {_words(refusal.what)}"))
            labels.append(self._label(refusal.at, f"refused: {_words(refusal.what)}", "refused-name"))
        if epoch.ended is not None:
            shape, word = _ENDS.get(epoch.ended.what, "end"), _END_WORDS[epoch.ended.what]
            self._above.append(self._mark(shape, epoch.ended.at, middle, word))
            labels.append(self._label(epoch.ended.at, word, f"{shape}-name"))
        return labels

    def _draw_takeover(self, before: Epoch, start: float, after: Epoch, end: float) -> None:
        """From the end of one lease down to the next claim."""
        given = self.x(before.lease_over if before.lease_over is not None else before.times[-1])
        taken = self.x(after.times[0])
        near = abs(taken - given) < 2  # noqa: PLR2004 - per cent: no room for an arrow from the side
        self._below.append(line(taken if near else given, start, taken if near else given, end, "link"))
        if not near:
            self._below.append(line(given, end, taken, end, "link"))
        self._below.append(self._mark("down" if near else "right", after.times[0], end, "taken over"))

    def _bar(self, start: float, end: float, middle: float, thick: int, kind: str) -> str:
        return bar(self.x(start), self.x(end), middle, thick, kind)

    def _mark(self, shape: str, at: float, y: float, what: str) -> str:
        return svg.mark(shape, self.x(at), y, f"{what}, {at:.2f} s")

    def _label(self, at: float, text: str, kind: str, *, beside: int = 0) -> Label:
        return label_at(self.x(at), text, kind, beside=beside)
