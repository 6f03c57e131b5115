"""One frame of `faultline top`: totals, small charts of the last hour, queues and workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.text import Text

from faultline.cli.commands.queues import counted
from faultline.cli.printing import screen, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from faultline.core.measures import Counted
    from faultline.store.database import Database
    from faultline.store.reads.overview import Minute, QueueLine, WorkerLine

_BARS = "▁▂▃▄▅▆▇█"
_TREND_MINUTES = 60
#: Fixed lines: head, totals, charts, headings and blanks.
_FIXED_ROWS = 13


class Look(NamedTuple):
    """One reading of the database."""

    at: str
    where: str
    queues: list[QueueLine]
    workers: list[WorkerLine]
    trend: list[Minute]
    hour: Counted
    #: The time, and the totals of each queue: two readings give a rate.
    seconds: float
    done: dict[str, int]


def ask(database: Database, before: Look | None = None) -> Look:
    """Read the database. With an earlier reading, rates are since then instead of the last minutes."""
    from faultline.store.reads import doctor_queries, overview  # noqa: PLC0415 - late, so that --help is quick

    server = database.run(doctor_queries.server())
    done = {total.queue: total.succeeded for total in database.run(overview.totals())}
    seconds = server.clock.timestamp()
    queues = counted(database)
    if before is not None and seconds > before.seconds:
        passed = seconds - before.seconds
        queues = [
            replace(line, succeeded_per_second=(done.get(line.name, 0) - before.done.get(line.name, 0)) / passed)
            for line in queues
        ]
    return Look(
        at=f"{server.clock.astimezone():%H:%M:%S}",
        where=f"database {server.database}, PostgreSQL {server.version}",
        queues=queues,
        workers=database.run(overview.workers()),
        trend=database.run(overview.trend(_TREND_MINUTES)),
        hour=database.run(overview.counted(_TREND_MINUTES)),
        seconds=seconds,
        done=done,
    )


def frame(look: Look, *, columns: int, rows: int | None) -> RenderableType:
    """What fits on the screen. The longest queues and silent workers come first, so that they are not cut off."""
    queues = sorted(look.queues, key=lambda line: (-line.due, -line.running, line.name))
    workers = sorted(look.workers, key=lambda line: (line.alive, line.host, line.pid))
    left = None if rows is None else max(2, rows - _FIXED_ROWS)
    queues_shown = len(queues) if left is None else min(len(queues), max(1, left - min(len(workers), left // 2)))
    workers_shown = len(workers) if left is None else max(1, left - queues_shown)
    return Group(
        _head(look, columns if rows is not None else None),
        Text(),
        _sums(look),
        Text(),
        _picture("done", [minute.succeeded for minute in look.trend], "succeeded"),
        _picture("due", [minute.due or 0 for minute in look.trend], "queued"),
        _picture("refused", [minute.refused for minute in look.trend], "refused"),
        Text(),
        tables.queue_table(queues[:queues_shown], workers) if queues else screen.quiet("No queues with work."),
        _more(len(queues) - queues_shown),
        tables.worker_table(workers[:workers_shown]) if workers else screen.quiet("No workers are running."),
        _more(len(workers) - workers_shown),
    )


def away(why: str, since: str | None) -> RenderableType:
    head = f"The database has not answered since {since}." if since else "The database does not answer."
    wrong = [Text(head, style="wrong"), Text(why, style="wrong")]
    return Group(Text("faultline top", style="bold"), Text(), *wrong, screen.quiet("retrying; press q to quit"))


def _head(look: Look, columns: int | None) -> Text:
    """`columns`: None for a pipe, which has no right edge and no keys."""
    head = Text.assemble(("faultline top", "bold"), "  ", (look.where, "quiet"))
    if columns is None:
        return head.append(f"  {look.at}", style="quiet")
    right = f"{look.at}  q: quit"
    head.truncate(max(20, columns - len(right) - 2), overflow="ellipsis")
    return head.append(" " * max(2, columns - head.cell_len - len(right))).append(right, style="quiet")


def _sums(look: Look) -> Text:
    alive = sum(worker.alive for worker in look.workers)
    hour = look.hour
    parts = (
        (f"{sum(line.due for line in look.queues):,}", "due", "queued"),
        (f"{sum(line.running for line in look.queues):,}", "running", "running"),
        (f"{sum(line.succeeded_per_second for line in look.queues):,.1f}/s", "done", "succeeded"),
        (f"{alive} of {len(look.workers)}", "workers", "ok" if alive == len(look.workers) else "warning"),
        (f"{hour.failed:,}", "failed/h", "failed" if hour.failed else "quiet"),
        (f"{hour.requeued:,}", "requeued/h", "note" if hour.requeued else "quiet"),
        (f"{hour.refused:,}", "refused/h", "refused" if hour.refused else "quiet"),
    )
    line = Text()
    for number, name, style in parts:
        line.append(number, style=style).append(f" {name}", style="quiet").append("   ")
    return line


def _picture(name: str, numbers: Sequence[int], style: str) -> Text:
    most = max(numbers, default=0)
    bars = "".join(_BARS[round(number / most * (len(_BARS) - 1))] if most else _BARS[0] for number in numbers)
    line = Text(f"{name:8} ", style="quiet").append(bars, style=style if most else "quiet")
    return line.append(f"  peak per minute: {most:,}", style="quiet")


def _more(left_out: int) -> Text:
    return Text(f"and {left_out} more\n" if left_out > 0 else "", style="quiet")
