"""A drill as a picture that a person can read: one lane for each epoch, and what became of it.

One page without scripts. All that is horizontal is a percentage of time, so the picture fits any width while its text
keeps its size; below the width that labels need, it scrolls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.explain import svg
from faultline.explain.formatting import words
from faultline.explain.picture import Lane, Picture
from faultline.explain.svg import SHAPES, Label, escaped, label_at, line, text, ticks
from faultline_proof import epochs
from faultline_proof.drills import DRILLS
from faultline_proof.page import badge, checked, page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline_proof.epochs import Epoch, Moment, Story
    from faultline_proof.verdict import Verdict

JOBS_MAX = 4
LANES_MAX = 12
_FAULTS_MAX = 16
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
        facts.append((epoch.reaped.at, f"reaped ({words(epoch.reaped.what)})"))
    if epoch.lost is not None:
        facts.append((epoch.lost.at, f"the worker noticed the loss ({words(epoch.lost.what)})"))
    facts += [(refusal.at, f"write refused ({words(refusal.what)})") for refusal in epoch.refused]
    if epoch.ended is not None:
        facts.append((epoch.ended.at, _END_WORDS[epoch.ended.what]))
    told = ", ".join(f"{what} at {at:.2f} s" for at, what in sorted(facts))
    return escaped(f"Job {epoch.job_id}, token {epoch.token}, worker {epoch.worker}: {told}.")


class Drawing:
    """The inside of the picture."""

    def __init__(self, jobs: Sequence[list[Epoch]], faults: Sequence[Moment]) -> None:
        self._faults = faults[:_FAULTS_MAX]
        drawn = [job[-LANES_MAX:] for job in jobs]
        times = [at for job in drawn for epoch in job for at in epoch.times] + [fault.at for fault in self._faults]
        self._from = min(times)
        self._to = max(*times, self._from + 0.001)
        self._picture = Picture()
        names = [label_at(self._x(fault.at), fault.what, "fault-name", beside=5) for fault in self._faults]
        room = self._picture.write(names, 12)
        top = bottom = room + 6 if room else 0
        for job in drawn:
            self._picture.above.append(text(Label(0, f"job {job[0].job_id}", "start", "job"), bottom + 16))
            bottom = self._picture.draw([self._lane(epoch) for epoch in job], bottom + 26) + 14
        self._draw_axis(top, bottom)
        self.height = bottom + 28
        self.markup = self._picture.markup

    def _x(self, at: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (at - self._from) / (self._to - self._from)

    def _draw_axis(self, top: float, bottom: float) -> None:
        grid = []
        for at in ticks(self._from, self._to):
            grid.append(line(self._x(at), top, self._x(at), bottom, "grid"))
            self._picture.above.append(text(Label(self._x(at), f"{at:g} s", "middle", "axis"), bottom + 20))
        lines = [line(self._x(fault.at), 4, self._x(fault.at), bottom, "fault") for fault in self._faults]
        self._picture.below[:0] = [*grid, line(0, bottom, 100, bottom, "edge"), *lines]

    def _lane(self, epoch: Epoch) -> Lane:
        first, last = epoch.times[0], epoch.times[-1]
        lane = Lane(
            escaped(f"token {epoch.token} \N{MIDDLE DOT} worker {epoch.worker}"),
            given=self._x(epoch.lease_over if epoch.lease_over is not None else last),
            taken=(self._x(first), f"taken over, {first:.2f} s"),
        )
        lane.bars += [(self._x(start), self._x(end), thick, kind) for start, end, thick, kind in _bars(epoch)]
        for shape, at, what, label, kind, beside in _marks(epoch):
            lane.mark(shape, self._x(at), f"{what}, {at:.2f} s", label, kind=kind, beside=beside)
        return lane


def _bars(epoch: Epoch) -> Iterator[tuple[float, float, int, str]]:
    """Thin while the lease was good, solid while the worker ran the job under it, pale while it ran on without."""
    over = epoch.activity_over
    lease_over = epoch.lease_over if epoch.lease_over is not None else max(over, epoch.times[-1])
    yield epoch.times[0], lease_over, 4, "lease"
    if epoch.started is not None:
        yield epoch.started, min(over, lease_over), 12, "run"
        if over > lease_over:
            yield lease_over, over, 12, "beyond"


def _marks(epoch: Epoch) -> Iterator[tuple[str, float, str, str, str, int]]:
    """Shape, time, what happened, and the word that stands there, with its kind and how far beside."""
    for at in epoch.renewals:
        yield "beat", at, "heartbeat", "", "", 0
    if epoch.claimed is not None:
        yield "claim", epoch.claimed, "claimed", "", "", 0
    if epoch.died is not None:
        yield "death", epoch.died, "worker killed", "killed", "fault-name", 0
    if epoch.reaped is not None:
        told = f"reaped: {words(epoch.reaped.what)}"
        yield "reap", epoch.reaped.at, told, told, "", 6
    elif epoch.lost is not None:
        why = words(epoch.lost.what) or "lease lost"
        yield "reap", epoch.lost.at, f"the worker let go: {why}", why, "", 6
    for refusal in epoch.refused:
        why = words(refusal.what)
        yield "refused", refusal.at, f"write refused: {why}", f"refused: {why}", "", 0
    if epoch.ended is not None:
        word = _END_WORDS[epoch.ended.what]
        yield _ENDS.get(epoch.ended.what, "end"), epoch.ended.at, word, word, "", 0
