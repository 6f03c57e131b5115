"""`faultline top`: the queues and workers, live. However it ends, it restores the terminal."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.cli.commands.database import Dsn, opened
from faultline.core.errors import DatabaseUnavailable, OutcomeUnknown, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rich.console import RenderableType

    from faultline.cli.printing.top_view import Look
    from faultline.store.database import Database


def top(
    dsn: Dsn = None,
    every: Annotated[float, typer.Option(min=0.2, max=3600, metavar="SECONDS", help="Seconds between two updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, for pipes.")] = False,  # noqa: FBT002
) -> None:
    """Watch queues, workers, rates and refused writes. Press q or Ctrl-C to quit.

    \b
    Examples:
      faultline top
      faultline top --once
    """
    from faultline.cli.printing import screen  # noqa: PLC0415 - late, so that --help is quick

    console = screen.console()
    with opened(dsn, connect_seconds=_CONNECT_SECONDS) as database:
        database.facts()
        watch = _Watch(database)
        if once:
            console.print(watch.frame(console.width, console.height if console.is_terminal else None))
            return
        if not (sys.stdin.isatty() and console.is_terminal):
            raise SetupError("standard output is not a terminal; print once with: faultline top --once")
        from rich.live import Live  # noqa: PLC0415

        with _ended_by_signals(), _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(watch.look(console.width, console.height), refresh=True)
                if _asked_to_end(every):
                    return


#: Workers report once a second: rates over less would jump.
_RATE_SECONDS = 8.0
#: Until then the screen shows the last reading.
_CONNECT_SECONDS = 2.0


class _Watch:
    """Repeated readings, with rates over the last seconds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looks: list[Look] = []

    def look(self, columns: int, rows: int | None) -> RenderableType:
        """One frame. An outage is shown, and the next reading tries again."""
        from faultline.cli.printing import top_view  # noqa: PLC0415

        try:
            return self.frame(columns, rows)
        except (DatabaseUnavailable, OutcomeUnknown) as error:
            return top_view.away(str(error), since=self._looks[-1].at if self._looks else None)

    def frame(self, columns: int, rows: int | None) -> RenderableType:
        from faultline.cli.printing import top_view  # noqa: PLC0415

        now = top_view.ask(self._database, self._looks[0] if self._looks else None)
        self._looks = [look for look in self._looks if now.seconds - look.seconds < _RATE_SECONDS] + [now]
        return top_view.frame(now, columns=columns, rows=rows)


def _asked_to_end(seconds: float) -> bool:
    """Wait until the next reading is due. Other keys read at once."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            return key in ("q", "Q", "")
    return False


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Read single keys without showing them."""
    import termios  # noqa: PLC0415 - missing on Windows
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A signal must not leave the alternate screen on; Ctrl-Z would, so it is ignored."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
