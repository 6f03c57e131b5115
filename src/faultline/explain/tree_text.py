"""A flow in a terminal.

article  01990a3c  waiting for the signal approval, for 3 min, until in 3 d
├─ 1  step draft  done  2.1 s, 3 tries
├─ 2  children of summarise  done  100 of 100 ended: 98 succeeded, 2 failed
│     ■■■■■■■■■■■■✗■■■■■■■■■■■■■■■
└─ 3  signal approval  waiting  for 3 min, until in 3 d

Each line is pieces of text with the names of their styles; the terminal decides how a style looks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from faultline.explain import child_strip
from faultline.explain.formatting import headline, span
from faultline.explain.tree import KINDS, WAITS, grown, limit, waits_for
from faultline.store.reads.flows import SHOWN_CHILDREN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from faultline.explain.attempts_text import Pieces
    from faultline.explain.tree import Row
    from faultline.store.reads.flows import Call, Flow

_STYLES = {
    "done": "succeeded",
    "failed": "failed",
    "timeout": "warning",
    "closed": "cancelled",
    "waiting": "waiting",
    "begun": "running",
    "not finished": "quiet",
}
_VALUE_COLUMNS = 60
_STRIP_COLUMNS_MAX = 100


def tree(flow: Flow, *, now: datetime, columns: int) -> Iterator[Pieces]:
    """Draw the tree, line by line."""
    root = grown(flow, now)
    if root is not None:
        yield _job(root, now)
        yield from _below(root, "", now, columns)


def _below(row: Row, before: str, now: datetime, columns: int) -> Iterator[Pieces]:
    for number, one in enumerate(row.below):
        last = number == len(row.below) - 1
        inner = before + ("   " if last else "│  ")
        yield [
            (before + ("└─ " if last else "├─ "), "quiet"),
            *(_job(one, now) if one.call is None else _call(one, one.call, now)),
        ]
        if one.children is not None and one.children.jobs > SHOWN_CHILDREN_MAX:
            width = max(10, min(_STRIP_COLUMNS_MAX, columns - len(inner) - 3))
            yield [(inner + "   ", "quiet"), *child_strip.text(one.children.cells, width)]
            for index, job_id, error in one.children.failures:
                yield [(inner + "   ", "quiet"), (f"{index} failed: {job_id}  {_cut(headline(error))}", "failed")]
        yield from _below(one, inner, now, columns)


def _job(row: Row, now: datetime) -> Pieces:
    job = row.job
    pieces = [(job.name or job.task, "bold"), (f"  {job.id}  ", "quiet"), (row.state, row.state)]
    waits = [one.call for one in row.below if one.call is not None and one.state == "waiting"]
    if row.state == "waiting" and waits:
        pieces.append((" " + " or ".join(waits_for(call.kind, call.name) for call in waits[:3]), ""))
    elif row.state == "running" and job.claimed_at is not None:
        pieces.append((f"  for {span((now - job.claimed_at).total_seconds())}", "quiet"))
    elif row.state == "succeeded" and job.finished_at is not None:
        pieces.append((f"  after {span((job.finished_at - job.created_at).total_seconds())}", "quiet"))
    elif job.last_error and row.state in ("failed", "cancelled"):
        pieces.append((f"  {_cut(headline(job.last_error))}", row.state))
    if job.program_changed:
        pieces.append((f"  does not go on: {headline(job.program_changed)}", "warning"))
    kept = [one.name for one in row.signals]
    if kept:
        pieces.append((f"  signals not received: {', '.join(kept[:5])}{' …' if len(kept) > 5 else ''}", "quiet"))  # noqa: PLR2004
    return pieces


def _call(row: Row, call: Call, now: datetime) -> Pieces:
    name = f" of {call.name}" if call.kind in ("children", "detached") else "" if call.name == call.kind else f" {call.name}"
    pieces = [(f"{call.number}  ", "quiet"), (KINDS.get(call.kind, call.kind) + name, "")]
    pieces.append((f"  {row.state}", _STYLES.get(row.state, "")))
    facts = []
    if row.over_at is not None:
        spent = (row.over_at - call.begun_at).total_seconds()
        facts += [f"after {span(spent)}" if call.kind in WAITS else span(spent)] if spent > 0 else []
    elif row.state == "waiting":
        facts.append(f"for {span((now - call.begun_at).total_seconds())}")
        over = limit(call.until)
        if over is not None:
            left = (over - now).total_seconds()
            facts.append(f"until in {span(left)}" if left > 0 else f"over for {span(-left)}")
    if call.tries > 1:
        facts.append(f"{call.tries} tries")
    if row.children is not None:
        expected = max(call.total or 0, row.children.jobs)
        facts.append(f"{row.children.ended:,} of {expected:,} ended: {child_strip.counted(row.children)}")
    facts += [f"from {one.sent_by}" for one in row.signals if one.sent_by]
    if facts:
        pieces.append((f"  {', '.join(facts)}", "quiet"))
    if call.error and call.outcome != "done":
        pieces.append((f"  {_cut(headline(call.error))}", "failed"))
    elif call.result is not None and call.kind not in ("children", "sleep", "watch", "after"):
        pieces.append((f"  {_cut(json.dumps(call.result, ensure_ascii=False, default=str))}", ""))
    return pieces


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_COLUMNS else f"{text[: _VALUE_COLUMNS - 1]}…"
