"""How output looks in a terminal: one palette, one kind of table, one format of times. Imported when a command prints.

Only terminals get colours; a pipe gets the same words in whole lines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from faultline.core.checks import hides
from faultline.explain.formatting import span

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

#: Wide enough for any line: a pipe must lose nothing.
_PIPE_COLUMNS = 2000
#: Control characters, and those that change the direction of text.
_OBEYED = dict.fromkeys([number for number in range(0x206A) if hides(chr(number))], "\ufffd")
_OBEYED = {number: shown for number, shown in _OBEYED.items() if chr(number) not in "\n\t"}
_GAP, _LAST_COLUMNS_MIN = 2, 12

THEME = Theme(
    {
        "queued": "cyan",
        "running": "blue",
        "waiting": "magenta",
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


class Shown(Console):
    """Show control characters instead of sending them: in a job's name, for example, they could repaint the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(_OBEYED))


def console(*, stderr: bool = False) -> Console:
    """The terminal or pipe."""
    made = Shown(theme=THEME, highlighter=NullHighlighter(), stderr=stderr, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _PIPE_COLUMNS
    return made


def table(*columns: str, right: tuple[str, ...] = (), last_wraps: bool = False) -> Table:
    """A table without lines. Columns in `right` hold numbers; an id is never cut."""
    made = Table(box=None, header_style="heading", pad_edge=False, padding=(0, _GAP, 0, 0))
    for name in columns:
        wraps = last_wraps and name == columns[-1]
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
        )
    return made


def show(to: Console, made: Table) -> None:
    """Print a table. The last column is cut first; a screen too narrow for the others gets long lines."""
    widths = [max(cell_len(str(cell)) for cell in (column.header, *column.cells)) for column in made.columns[:-1]]
    taken = sum(widths) + _GAP * len(widths)
    to.width = max(to.width, taken + _LAST_COLUMNS_MIN)
    for column, width in zip(made.columns, widths, strict=False):
        column.min_width = width
    made.columns[-1].max_width = to.width - taken
    to.print(made)


def state(name: str) -> Text:
    return Text(name, style=name)


def quiet(text: str) -> Text:
    return Text(text, style="quiet")


def one_line(text: str | None, most: int = 120) -> str:
    """The first line of a text, for a cell of a table."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


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
