"""`faultline doctor`: check everything, print the findings and what to do. It changes nothing."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict

import typer

from faultline.cli.commands.database import AsJson, Dsn, print_json, resolved
from faultline.doctor.checks import Finding, Level


def doctor(dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """Check server, schema, roles, settings, housekeeping, invariants and workers, and print what to do.

    Levels: ok, note, warning, wrong. The exit code is 1 only if something is wrong.

    \b
    Examples:
      faultline doctor
      faultline doctor --json | jq '.findings[] | select(.level == "wrong")'
    """
    from faultline.doctor.examination import examine  # noqa: PLC0415 - late, so that --help is quick

    found: list[tuple[str, Finding]] = []
    with resolved(dsn) as chosen:
        show = _silently if as_json else _Page().show
        for section, finding in examine(chosen, _progress):
            found.append((section, finding))
            show(section, finding)
    levels = Counter(finding.level for _, finding in found)
    if as_json:
        findings = [{"section": section, **asdict(finding)} for section, finding in found]
        print_json({"levels": {level: levels[level] for level in Level}, "findings": findings})
    else:
        print("\n" + ", ".join(_times(levels[level], level) for level in reversed(Level) if levels[level]))
    if levels[Level.WRONG]:
        raise typer.Exit(1)


def _times(number: int, level: Level) -> str:
    return f"{number} {level}{'s' if number > 1 and level in (Level.NOTE, Level.WARNING) else ''}"


def _silently(_: str, __: Finding) -> None:
    """JSON is printed at the end, as one text."""


class _progress:  # noqa: N801 - reads as a word
    """One line on a terminal's standard error, removed when the work is done."""

    def __init__(self, line: str) -> None:
        self._line = line if sys.stderr.isatty() else None

    def __enter__(self) -> None:
        if self._line:
            print(f"\r{self._line}\x1b[K", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


_NAMES_COLUMNS = {"settings": 36, "invariants": 34}


class _Page:
    """Prints findings as they come, under their sections."""

    def __init__(self) -> None:
        from faultline.cli.printing import screen  # noqa: PLC0415

        self._console = screen.console()
        self._section = ""

    def show(self, section: str, finding: Finding) -> None:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        if section != self._section:
            self._console.print(Text(section if not self._section else f"\n{section}", style="heading"))
            self._section = section
        summary = Text(finding.found)
        if finding.todo:
            summary.append(f"\n→ {finding.todo}", style=finding.level if finding.level is not Level.NOTE else "quiet")
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=7, no_wrap=True)
        grid.add_column(min_width=_NAMES_COLUMNS.get(section, 20), no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(finding.level, style=finding.level), finding.check, summary)
        self._console.print(grid)
