"""How things look in a terminal: one palette, one kind of table, one way to tell a time. Imported when a command prints.

Colours are for terminals alone; a pipe gets the same words in whole lines, cut nowhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

if TYPE_CHECKING:
    from datetime import datetime, timedelta

#: Wide enough for any line: in a pipe, what is cut off is lost.
_PIPE_COLUMNS = 2000

THEME = Theme(
    {
        "queued": "cyan",
        "running": "blue",
        "succeeded": "green",
        "failed": "red",
        "cancelled": "yellow",
        "refused": "bold red",
        "quiet": "bright_black",
        "heading": "bright_black",
        "ok": "green",
        "note": "cyan",
        "warning": "yellow",
        "wrong": "bold red",
    }
)


def console(*, stderr: bool = False) -> Console:
    """The terminal, or the pipe that stands for it."""
    made = Console(theme=THEME, highlighter=NullHighlighter(), stderr=stderr, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPE_COLUMNS
    return made


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """A table without lines. Columns in `right` hold numbers; those in `whole` are never cut short."""
    made = Table(box=None, header_style="heading", pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(
            name, justify="right" if name in right else "left", no_wrap=True, overflow="fold" if name in whole else "ellipsis",
            min_width=36 if name == "id" else None,
        )  # fmt: skip
    return made


def state(name: str) -> Text:
    return Text(name, style=name)


def quiet(text: str) -> Text:
    return Text(text, style="quiet")


def one_line(text: str | None, most: int = 120) -> str:
    """The first line of a text, for a cell of a table."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


def span(seconds: float) -> str:
    """A length of time, as short as it stays useful: 85 ms, 3.2 s, 4 min, 2 h 5 min, 3 d."""
    for limit, told in (
        (0.0995, f"{seconds * 1000:.0f} ms"),
        (9.95, f"{seconds:.1f} s"),
        (99.5, f"{seconds:.0f} s"),
        (5400, f"{seconds / 60:.0f} min"),
        (172800, f"{seconds / 3600:.0f} h"),
    ):
        if abs(seconds) < limit:
            return told
    return f"{seconds / 86400:.0f} d"


def since(at: datetime | None, now: datetime) -> str:
    """How long ago, or in how long."""
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def length(of: timedelta) -> str:
    return span(of.total_seconds())


def clock(at: datetime | None) -> str:
    """A moment in this machine's time zone, to the millisecond."""
    return "" if at is None else at.astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
