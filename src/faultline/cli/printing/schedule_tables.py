"""Schedules and their ticks for the terminal. Imported when they are printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from faultline.cli.printing import screen
from faultline.explain.formatting import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from rich.table import Table

    from faultline.store.reads.schedules import ScheduleLine
    from faultline.store.reads.tick_history import TickState

_STYLES = {
    "active": "ok",
    "failing": "wrong",
    "overdue": "wrong",
    "orphaned": "warning",
    "paused": "warning",
    "ended": "quiet",
}


def schedule_table(lines: Sequence[ScheduleLine]) -> Table:
    made = screen.table("schedule", "state", "rule", "next", "last", "task", "queue", "", last_wraps=True)
    for line in lines:
        made.add_row(
            Text(line.name, style="bold"),
            Text(line.state, style=_STYLES[line.state]),
            line.rule_text,
            "" if line.state in {"paused", "orphaned"} else screen.since(line.next_at, line.clock),
            screen.since(line.last_at, line.clock),
            line.task,
            line.queue,
            Text(_remark(line), style=_STYLES[line.state]),
        )
    return made


def facts(line: ScheduleLine, local: Callable[[datetime], str]) -> Iterator[Text]:
    """What is known of one, a line each."""
    yield Text.assemble((line.name, "bold"), "  ", (line.state, _STYLES[line.state]), "  ", _remark(line))
    job = json.dumps(line.shown_job, ensure_ascii=False, default=str)
    late = f", within {span(line.catch_up_seconds)}" if line.catch_up != "skip" else ""
    source = "the code" if line.from_code else "run time"
    found = {
        "rule": line.rule_text,
        "job": screen.one_line(job, 400),
        "policy": f"catch up {line.catch_up}{late}; overlap {line.overlap}"
        + (f"; jitter up to {span(line.jitter_seconds)}" if line.jitter_seconds else ""),
        "from": source + (", changed at run time" if line.overridden else ""),
        "but": line.other_code,
        "changed": ", ".join(filter(None, (screen.since(line.changed_at, line.clock), line.changed_by, line.reason))),
        "error": line.last_error or "",
    }
    for name, value in found.items():
        if value:
            yield Text.assemble((f"{name:8}", "quiet"), " ".join(value.split()))
    for at in line.upcoming(5):
        yield Text.assemble(("next    ", "quiet"), f"{local(at)}  ", (screen.since(at, line.clock), "quiet"))


def tick_table(ticks: Sequence[TickState], now: datetime, local: Callable[[datetime], str]) -> Table:
    made = screen.table("tick", "outcome", "decided", "job", "state")
    for tick in ticks:
        run = f" to {local(tick.last_at)}, {tick.ticks:,} ticks" if tick.last_at and tick.ticks > 1 else ""
        made.add_row(
            local(tick.at) + run,
            Text(tick.outcome, style="warning" if tick.outcome in ("missed", "skipped") else ""),
            screen.since(tick.decided_at, now),
            "" if tick.job_id is None else str(tick.job_id),
            screen.state(tick.job_state) if tick.job_state else screen.quiet("pruned" if tick.job_id else ""),
        )
    return made


def _remark(line: ScheduleLine) -> str:
    if line.state == "paused":
        who = f" by {line.changed_by}" if line.changed_by else ""
        why = f": {' '.join(line.reason.split())}" if line.reason else ""
        return f"{screen.since(line.paused_at, line.clock)}{who}{why}"
    if line.state == "failing":
        return f"since {screen.since(line.failed_at, line.clock)}: {screen.one_line(line.last_error)}"
    if line.state == "orphaned":
        return "no worker has it in its code: it does not tick"
    return "no worker has decided about its tick" if line.state == "overdue" else ""
