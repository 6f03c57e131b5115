"""A job's life in the terminal: one lane for each epoch, on one axis of time, with refused writes where they hit.

token  owner  12:03:04.100        12:03:07.020
    1  w1/17  ├━━━━━━━━┤┄┄┄┄┄┄┄┄✗             reaped after 1.1 s
                lease_expired
              ✗ 12:03:06.922 complete refused: token_mismatch, the token is 2
    2  w2/4              ├━━━━━━━━━━━━━━━━━●  succeeded after 1.6 s
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from faultline import operate
from faultline.cli import screen
from faultline.drawing.epochs import Epoch, EpochEnd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from rich.console import Console

    from faultline.core.model import JobRecord, JournalEntry, Json

_STYLES = {
    EpochEnd.RUNNING: "running",
    EpochEnd.SUCCEEDED: "succeeded",
    EpochEnd.FAILED: "failed",
    EpochEnd.CANCELLED: "cancelled",
}
_LAST = {EpochEnd.RUNNING: "▶", EpochEnd.SUCCEEDED: "●", EpochEnd.FAILED: "■", EpochEnd.CANCELLED: "■"}
_REFUSALS_TOLD = 6
_ENDING_COLUMNS = 36
_OWNER_COLUMNS_MAX = 24
_LANE_MIN, _LANE_MAX = 26, 72


def lanes(epochs: Sequence[Epoch], *, now: datetime, columns: int) -> Iterator[Text]:
    """Draw the epochs, line by line. A screen too narrow for the lanes gets the text only."""
    owner_columns = min(_OWNER_COLUMNS_MAX, max([5, *(len(epoch.owner or "") for epoch in epochs)]))
    indent = 7 + owner_columns + 2
    width = min(_LANE_MAX, columns - indent - _ENDING_COLUMNS)
    axis = _Axis(epochs, now, width) if width >= _LANE_MIN and any(epoch.claimed_at for epoch in epochs) else None
    yield Text(f"{'token':>5}  {'owner':{owner_columns}}  {axis.header() if axis else ''}".rstrip(), style="heading")
    for epoch in epochs:
        line = Text(f"{epoch.token:>5}  {_cut(epoch.owner or '', owner_columns):{owner_columns}}  ")
        if axis is not None:
            line.append_text(axis.lane(epoch)).append("  ")
        yield line.append_text(_ending(epoch, now))
        for told in _details(epoch):
            yield Text(" " * indent) + told


def _ending(epoch: Epoch, now: datetime) -> Text:
    told = Text(str(epoch.end), style=_STYLES.get(epoch.end, ""))
    if epoch.claimed_at is not None:
        spent = screen.length((epoch.ended_at or now) - epoch.claimed_at)
        told.append(f" {'for' if epoch.ended_at is None else 'after'} {spent}", style="default")
    if epoch.renewals:
        told.append(f", {epoch.renewals} renewals", style="quiet")
    return told


def _details(epoch: Epoch) -> Iterator[Text]:
    """Why it ended, and the refused writes in words. The first of many tell the story."""
    if epoch.because:
        yield Text(f"  {screen.one_line(epoch.because)}", style=_STYLES.get(epoch.end, "quiet"))
    for write in epoch.refusals[:_REFUSALS_TOLD]:
        yield Text(
            f"✗ {screen.clock(write.at)[11:]} {write.verb} refused: {write.reason}, the token is {write.current_token}",
            style="refused",
        )
    if len(epoch.refusals) > _REFUSALS_TOLD:
        yield Text(f"✗ and {len(epoch.refusals) - _REFUSALS_TOLD} more", style="refused")


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


class _Axis:
    """From the first claim to the last thing that happened, on so many columns."""

    def __init__(self, epochs: Sequence[Epoch], now: datetime, width: int) -> None:
        moments = [at for epoch in epochs for at in (epoch.claimed_at, epoch.ended_at) if at is not None]
        moments += [write.at for epoch in epochs for write in epoch.refusals]
        if any(epoch.end is EpochEnd.RUNNING for epoch in epochs):
            moments.append(now)
        self._first, self._last, self._now, self._width = min(moments), max(moments), now, width

    def header(self) -> str:
        first, last = screen.clock(self._first)[11:], screen.clock(self._last)[11:]
        return f"{first}{last:>{self._width - len(first)}}"

    def lane(self, epoch: Epoch) -> Text:
        cells: list[tuple[str, str]] = [(" ", "")] * self._width
        if epoch.claimed_at is not None:
            style = _STYLES.get(epoch.end, "bold")
            first, last = self._column(epoch.claimed_at), self._column(epoch.ended_at or self._now)
            for column in range(first, last):
                cells[column] = ("━", style)
            cells[first] = ("├", style)
            cells[last] = (_LAST.get(epoch.end, "┤"), style)
            if epoch.refusals:
                for column in range(last + 1, self._column(epoch.refusals[-1].at)):
                    cells[column] = ("┄", "quiet")
        for write in epoch.refusals:
            cells[self._column(write.at)] = ("✗", "refused")
        return Text.assemble(*cells)

    def _column(self, at: datetime) -> int:
        whole = (self._last - self._first).total_seconds()
        share = (at - self._first).total_seconds() / whole if whole else 0.0
        return min(self._width - 1, max(0, round(share * (self._width - 1))))


def print_record(
    console: Console, record: JobRecord, journal: Sequence[JournalEntry], *, now: datetime, in_ledger: int
) -> None:
    console.print(
        Text.assemble((record.task, "bold"), ("  in queue ", "quiet"), record.queue, "  ", screen.state(record.state))
    )
    console.print(screen.quiet(str(record.id)))
    console.print()
    facts = {
        "enqueued": f"{screen.clock(record.created_at)}  ({screen.since(record.created_at, now)})",
        "attempt": f"{record.attempt} of {record.max_attempts}",
        "priority": str(record.priority) if record.priority else "",
        "key": record.idempotency_key or "",
    }
    if record.state == "queued" and record.next_run_at is not None:
        again = "next try" if record.attempt else "due"
        facts[again] = f"{screen.clock(record.next_run_at)}  ({screen.since(record.next_run_at, now)})"
    if record.lease_expires_at is not None:
        facts["lease"] = f"until {screen.clock(record.lease_expires_at)}  ({screen.since(record.lease_expires_at, now)})"
    if record.finished_at is not None:
        facts["finished"] = f"{screen.clock(record.finished_at)}  ({screen.since(record.finished_at, now)})"
    facts["ledger"] = f"{in_ledger} row, by token {record.fencing_token}" if in_ledger else "no row: not completed"
    for name, value in facts.items():
        if value:
            console.print(Text.assemble((f"{name:10}", "quiet"), value))
    _print_operations(console, journal)


def _print_operations(console: Console, journal: Sequence[JournalEntry]) -> None:
    """What operators did to the job, and why."""
    for entry in journal:
        by = operate.told(entry.detail)
        if by and isinstance(entry.detail, dict):
            why = entry.detail.get("reason")
            told = f"{entry.event} by {by}" + (f": {screen.one_line(str(why))}" if why else "")
            console.print(Text.assemble((f"{screen.clock(entry.at)}  ", "quiet"), told), soft_wrap=True)


def print_values(console: Console, record: JobRecord) -> None:
    for name, value in (("args", record.args), ("progress", record.progress), ("result", record.result)):
        if value is not None:
            console.print()
            console.print(screen.quiet(name))
            console.print(Text(_pretty(value)), soft_wrap=True)
    if record.last_error:
        console.print()
        console.print(screen.quiet("last error"))
        console.print(Text(record.last_error.rstrip(), style="failed"), soft_wrap=True)


def _pretty(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else json.dumps(value, ensure_ascii=False, indent=2, default=str)  # noqa: PLR2004
