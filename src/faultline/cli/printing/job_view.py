"""A job in the terminal: its fields, its epochs as lanes, operations on it, and its values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from faultline import operate
from faultline.cli.printing import screen
from faultline.explain.attempts_text import lanes
from faultline.explain.epochs import program_changed, unrecorded
from faultline.explain.tree import limit, waits_for
from faultline.store.reads.flows import flow_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from rich.console import Console

    from faultline.core.model import JobRecord, JournalEntry, Json
    from faultline.explain.epochs import Epoch
    from faultline.store.reads.suspended import Waiting


def print_record(
    console: Console,
    record: JobRecord,
    journal: Sequence[JournalEntry],
    *,
    now: datetime,
    in_ledger: int,
    waits: Sequence[Waiting] = (),
    held_up: Mapping[str, str],
) -> None:
    console.print(
        Text.assemble(
            (flow_names(record)[0] or record.task, "bold"),
            ("  in queue ", "quiet"),
            record.queue,
            "  ",
            screen.state(record.shown_state),
        )
    )
    console.print(screen.quiet(str(record.id)))
    console.print()
    facts = {
        "enqueued": f"{screen.clock(record.created_at)}  ({screen.since(record.created_at, now)})",
        "attempt": f"{record.attempt} of {record.max_attempts}",
        "priority": str(record.priority) if record.priority else "",
        "key": record.idempotency_key or "",
        "unique": record.unique_key or "",
    }
    if record.suspended and not record.attempt:
        facts["attempt"] = f"none of {record.max_attempts} used"
    if record.waits_at(now):
        over = limit(record.next_run_at)
        what = " or ".join(waits_for(wait.kind, wait.name) for wait in waits[:3])
        facts["waits"] = f"{what or 'until it is woken'}; token {record.fencing_token}; see: faultline flow {record.id}"
        facts["until"] = "" if over is None else f"{screen.clock(over)}  ({screen.since(over, now)})"
    elif record.state == "queued" and record.next_run_at is not None:
        again = "next try" if record.attempt else "due"
        facts[again] = f"{screen.clock(record.next_run_at)}  ({screen.since(record.next_run_at, now)})"
    facts["expires"] = _expiry(record, now)
    facts["group"] = record.group or ""
    facts |= held_up
    if record.lease_expires_at is not None:
        facts["lease"] = f"until {screen.clock(record.lease_expires_at)}  ({screen.since(record.lease_expires_at, now)})"
    if record.finished_at is not None:
        facts["finished"] = f"{screen.clock(record.finished_at)}  ({screen.since(record.finished_at, now)})"
    facts["ledger"] = f"{in_ledger} row, by token {record.fencing_token}" if in_ledger else "no row: not completed"
    for name, value in facts.items():
        if value:
            console.print(Text.assemble((f"{name:10}", "quiet"), value))
    _print_operations(console, journal)


def _expiry(record: JobRecord, now: datetime) -> str:
    """When it expires; nothing, once a worker has claimed it."""
    if record.expires_at is None or record.state != "queued" or record.fencing_token:
        return ""
    return f"{screen.clock(record.expires_at)}  ({screen.since(record.expires_at, now)})"


def _print_operations(console: Console, journal: Sequence[JournalEntry]) -> None:
    """What operators did to the job, and why."""
    for entry in journal:
        by = operate.signature(entry.detail)
        if by and isinstance(entry.detail, dict):
            why = entry.detail.get("reason")
            summary = f"{entry.event} by {by}" + (f": {screen.one_line(str(why))}" if why else "")
            console.print(Text.assemble((f"{screen.clock(entry.at)}  ", "quiet"), summary), soft_wrap=True)


def print_values(console: Console, record: JobRecord) -> None:
    for name, value in (("args", record.args), ("progress", record.progress), ("result", record.result)):
        if value is not None:
            console.print()
            console.print(screen.quiet(name))
            console.print(Text(_pretty(value)), soft_wrap=True)
    if record.last_error:
        console.print()
        cancelled = record.state == "cancelled"
        console.print(screen.quiet("reason" if cancelled else "last error"))
        console.print(Text(record.last_error.rstrip(), style="quiet" if cancelled else "failed"), soft_wrap=True)


def _pretty(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else json.dumps(value, ensure_ascii=False, indent=2, default=str)  # noqa: PLR2004


def print_lives(
    console: Console, record: JobRecord, journal: Sequence[JournalEntry], lives: Sequence[Epoch], *, now: datetime
) -> None:
    """The epochs, and what they do not show."""
    if lives:
        print_lanes(console, lives, now=now)
    changed = program_changed(record, journal)
    if changed is not None:
        why = f"It does not go on since {screen.clock(changed.at)}: {changed.detail.get('error')}"
        console.print(Text(why, style="warning"))
    elif unknown := unrecorded(record, lives):
        console.print(unknown, style="quiet")
    elif not lives and not record.fencing_token:
        console.print("No worker has claimed it yet.", style="quiet")


def print_lanes(console: Console, epochs: Sequence[Epoch], *, now: datetime) -> None:
    for line in lanes(epochs, now=now, columns=console.width):
        console.print(Text.assemble(*line), soft_wrap=True)
