"""Queues, workers and jobs as tables for the terminal. Imported when one is printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from faultline.cli.printing import screen
from faultline.explain.formatting import span
from faultline.explain.tree import limit, waits_for
from faultline.explain.why_not_running import serving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import RenderableType
    from rich.table import Table

    from faultline.core.model import JobSummary
    from faultline.store.reads.failures import Group
    from faultline.store.reads.overview import QueueLine, WorkerLine
    from faultline.store.reads.suspended import Waiting
    from faultline.store.reads.views import Step

_RESULT_MAX = 80


def queue_table(lines: Sequence[QueueLine], workers: Sequence[WorkerLine]) -> Table:
    numbers = ("due", "later", "running", "failed", "done/s", "oldest", "wait p95", "run p95")
    made = screen.table("queue", *numbers, "", right=numbers, last_wraps=True)
    for line in lines:
        made.add_row(
            Text(line.name, style="bold"),
            _count(line, "due"),
            _count(line, "delayed") if line.delayed else screen.quiet("0"),
            Text(_count(line, "running"), style="running" if line.running else "quiet"),
            Text(_count(line, "failed"), style="failed" if line.failed else "quiet"),
            f"{line.succeeded_per_second:,.1f}",
            _span(line.oldest_due_seconds if line.due else None),
            _span(line.wait_seconds_p95),
            _span(line.run_seconds_p95),
            _remark(line, served=bool(serving(line.name, workers))),
        )
    return made


def worker_table(lines: Sequence[WorkerLine]) -> Table:
    made = screen.table(
        "worker", "host", "pid", "version", "leases", "beat", "clock", "queues", right=("pid", "leases", "beat", "clock")
    )
    for line in lines:
        made.add_row(
            line.id,
            line.host,
            str(line.pid),
            line.version,
            f"{line.leases:,}",
            Text(span(line.age_seconds) + " ago", style="ok" if line.alive else "warning"),
            "" if line.clock_ahead_seconds is None else screen.quiet(f"{line.clock_ahead_seconds:+.2f} s"),
            ", ".join(line.queues),
        )
    return made


def job_table(lines: Sequence[JobSummary], now: datetime) -> Table:
    made = screen.table("id", "state", "queue", "task", "attempt", "enqueued", "")
    for line in lines:
        made.add_row(
            str(line.id),
            screen.state(line.shown_state),
            line.queue,
            Text(line.task, style="bold"),
            f"{line.attempt} of {line.max_attempts}",
            screen.since(line.created_at, now),
            _stands(line, now),
        )
    return made


def _stands(line: JobSummary, now: datetime) -> Text:
    """The most important thing about a job in its state."""
    if line.state == "running":
        return screen.quiet(f"{line.owner}, for {screen.length(now - line.claimed_at)}" if line.claimed_at else "")
    if line.suspended:
        over = limit(line.next_run_at)
        return screen.quiet("" if over is None else f"until {screen.since(over, now)}")
    if line.state == "queued" and line.next_run_at is not None and line.next_run_at > now:
        return screen.quiet(f"runs {screen.since(line.next_run_at, now)}")
    if line.in_group:
        return screen.quiet(f"waits in group {line.group}")
    if line.last_error:
        style = "failed" if line.state == "failed" else "quiet"
        return Text(screen.one_line(line.last_error), style=style, overflow="ellipsis", no_wrap=True)
    if line.finished_at and line.claimed_at:
        return screen.quiet(f"took {screen.length(line.finished_at - line.claimed_at)}")
    return Text()


def waiting_table(lines: Sequence[Waiting], now: datetime) -> Table:
    made = screen.table("job", "call", "task", "queue", "since", "until", "waits", "arguments", last_wraps=True)
    for line in lines:
        over = limit(line.until)
        made.add_row(
            str(line.job_id),
            line.number,
            Text(line.task, style="bold"),
            line.queue,
            screen.since(line.since, now),
            "" if over is None else screen.since(over, now),
            waits_for(line.kind, line.name),
            Text(screen.one_line(line.args), style="quiet"),
        )
    return made


def step_table(steps: Sequence[Step], now: datetime) -> Table:
    """A long result is cut and its size shown; --json prints all of it."""
    made = screen.table("step", "token", "done", "result", right=("token",), last_wraps=True)
    for step in steps:
        text = json.dumps(step.result, ensure_ascii=False, default=str)
        shown = Text(screen.one_line(text[:_RESULT_MAX]))
        if len(text) > _RESULT_MAX:
            shown.append(f"… {len(text.encode()):,} bytes", style="quiet")
        made.add_row(Text(step.name, style="bold"), str(step.fencing_token), screen.since(step.recorded_at, now), shown)
    return made


def failure_table(groups: Sequence[Group], now: datetime) -> Table:
    made = screen.table("jobs", "task", "queues", "last", "error", right=("jobs",), last_wraps=True)
    for group in groups:
        made.add_row(
            f"{group.jobs:,}",
            Text(group.task, style="bold"),
            ", ".join(group.queues),
            screen.since(group.last_at, now),
            Text(screen.one_line(group.error_kind), style="failed"),
        )
    return made


def _count(line: QueueLine, state: str) -> str:
    return f"{'~' if state in line.estimated else ''}{getattr(line, state):,}"


def _remark(line: QueueLine, *, served: bool) -> RenderableType:
    if line.counts_are_old and line.counted_seconds_ago is not None:
        return Text(f"counted {span(line.counted_seconds_ago)} ago", style="warning")
    if line.paused_at is not None:
        # A reason may have lines and tabs; a row may not.
        why = f": {' '.join(line.paused_reason.split())}" if line.paused_reason else ""
        return Text(f"paused{why}{f', by {line.paused_by}' if line.paused_by else ''}", style="warning")
    if line.due and not served:
        return Text("no worker serves it", style="warning")
    if line.counted_seconds_ago is None:
        return Text("not counted yet", style="warning")
    if line.drain_seconds:
        return _span(line.drain_seconds, "drained in ")
    return ""


def _span(seconds: float | None, before: str = "") -> RenderableType:
    return screen.quiet("-") if seconds is None else before + span(seconds)
