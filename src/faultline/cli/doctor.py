"""`faultline doctor`: check everything, print the findings and what to do. It changes nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from faultline.cli import checks, limit_checks, logins, scheduled, tampering
from faultline.cli.checks import Finding, Level
from faultline.cli.database import AsJson, Dsn, print_json, resolved
from faultline.core.errors import DatabaseUnavailable, SchemaError, StatementTimeout
from faultline.core.settings import choose_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.cli.visit import Visit
    from faultline.store.reads.vitals import Server

#: How long one invariant may take: it reads every row.
_INVARIANT_SECONDS = 600.0


def doctor(dsn: Dsn = None, as_json: AsJson = False) -> None:  # noqa: FBT002 - a command's flag
    """Check server, schema, roles, settings, housekeeping, invariants and workers, and print what to do.

    Levels: ok, note, warning, wrong. The exit code is 1 only if something is wrong.

    \b
    Examples:
      faultline doctor
      faultline doctor --json | jq '.findings[] | select(.level == "wrong")'
    """
    found: list[tuple[str, Finding]] = []
    with resolved(dsn) as chosen:
        show = _silently if as_json else _Page().show
        for section, finding in _examine(chosen):
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


def _examine(dsn: str) -> Iterator[tuple[str, Finding]]:
    """One connection, one question after the other; an unanswered one does not stop the rest."""
    from faultline.cli.visit import Visit  # noqa: PLC0415 - late, so that --help is quick

    try:
        with contextlib.closing(Visit(dsn, choose_timeout())) as visit:
            yield from _going_on("server", _looked_at(visit))
    except DatabaseUnavailable as error:
        yield "server", checks.unreachable(str(error))
    except StatementTimeout:
        yield "server", checks.cut_short()


def _looked_at(visit: Visit) -> Iterator[tuple[str, Finding]]:
    from faultline.cli.visit import NotSeen, Refused  # noqa: PLC0415
    from faultline.store.install import migrate, shape  # noqa: PLC0415
    from faultline.store.reads import logins as stored_logins  # noqa: PLC0415
    from faultline.store.reads import vitals  # noqa: PLC0415

    server = visit.must(vitals.server())
    yield from _under("server", checks.server(server, pooler=visit.pooler))
    yield from _under("settings", visit.about(checks.settings, vitals.settings(checks.SETTINGS)))
    try:
        protocol = visit.look(vitals.protocol())
        if isinstance(protocol, NotSeen):
            todo = visit.must(vitals.way_in()) if isinstance(protocol, Refused) else protocol.todo
            yield "schema", Finding("schema", Level.WRONG, protocol.found, todo)
            return
        migrate.check(protocol)
    except SchemaError as error:
        yield "schema", Finding("schema", Level.WRONG, *_parted(str(error)))
        return
    yield "schema", checks.protocol(protocol, migrate.protocol())
    if protocol.version == migrate.protocol().version:
        for check, statement in tampering.about_definitions():
            yield from _under("schema", visit.about(check, statement))
        unrecorded = visit.look(shape.unrecorded())
        if not isinstance(unrecorded, NotSeen):
            yield from _under("schema", tampering.files(unrecorded))
    yield from _under("schema", visit.about(checks.roles, vitals.roles(), superuser=server.is_superuser))
    yield from _under("schema", visit.about(logins.logins, stored_logins.logins()))
    yield from _under("schema", visit.about(tampering.history, vitals.lost_history()))
    yield from _going_on("housekeeping", _housekeeping(visit, server))
    yield from _going_on("work", _at_work(visit, server))
    yield from _invariants(visit)


def _housekeeping(visit: Visit, server: Server) -> Iterator[tuple[str, Finding]]:
    from faultline.store.reads import health, views, vitals  # noqa: PLC0415

    def durable(standbys: list[vitals.Standby]) -> Iterator[Finding]:
        settings = visit.must(vitals.settings(checks.SETTINGS))
        return checks.durability(settings, standbys, sees_sessions=server.sees_sessions)

    yield from _under("housekeeping", visit.about(durable, vitals.standbys()))
    seen, slots, never = visit.must(health.health()), visit.must(vitals.slots()), visit.must(vitals.never_vacuumed())
    yield from _under("housekeeping", visit.about(checks.kept, views.settings()))
    yield from _under("housekeeping", checks.held_back(seen, slots))
    yield from _under("housekeeping", checks.bloat(seen, never))


def _at_work(visit: Visit, server: Server) -> Iterator[tuple[str, Finding]]:
    from faultline.store.reads import groups, health, limit_holders, overview, vitals  # noqa: PLC0415
    from faultline.store.reads import limits as stored_limits  # noqa: PLC0415
    from faultline.store.reads import schedules as stored_schedules  # noqa: PLC0415

    before = time.time()
    now = visit.must(vitals.server()).clock
    ahead = (before + time.time()) / 2 - now.timestamp()
    workers = yield from visit.list_of("workers", overview.workers())
    waiting = yield from visit.list_of("waiting", vitals.waiting())
    yield from _under("work", checks.clocks(ahead, workers or []))
    yield from _under("work", visit.about(checks.connections, health.health(), workers))
    if workers is not None and waiting is not None:
        yield from _under("work", visit.about(checks.at_work, vitals.overdue(), workers, waiting))
    if workers is not None:
        yield from _under("work", visit.about(checks.known_tasks, vitals.waiting_tasks(), workers))
    yield from _flows(visit)
    yield from _under("work", visit.about(scheduled.schedules, stored_schedules.schedules()))
    yield from _under("work", visit.about(limit_checks.holders, limit_holders.limit_holders()))
    yield from _under("work", visit.about(limit_checks.use, groups.in_use(), workers or []))
    yield from _under("work", visit.about(limit_checks.orphans, stored_limits.limits()))
    paused = yield from visit.list_of("paused", vitals.paused())
    yield from _under("work", visit.about(checks.set_aside, vitals.failed(), paused or [], server.clock))


def _flows(visit: Visit) -> Iterator[tuple[str, Finding]]:
    from faultline.cli.visit import NotSeen  # noqa: PLC0415
    from faultline.store.reads import waiting  # noqa: PLC0415

    totals = visit.look(waiting.totals())
    if isinstance(totals, NotSeen):
        yield "work", totals.finding("flows")
        return
    some = [visit.look(waiting.for_nothing()), visit.look(waiting.changed_programs())]
    known = [waiting.Some(0, None) if isinstance(one, NotSeen) else one for one in some]
    yield from _under("work", checks.flows(totals, *known))


def _invariants(visit: Visit) -> Iterator[tuple[str, Finding]]:
    """With much data it takes long, so a terminal shows which invariant is being checked."""
    from faultline.cli.visit import NotSeen, Refused  # noqa: PLC0415
    from faultline.store.reads import invariants  # noqa: PLC0415

    names, unseen = invariants.names(), 0
    for number, name in enumerate(names, start=1):
        title = name.replace("_", " ")
        with _progress(f"checking {number} of {len(names)}: {title}"):
            violation = visit.look(invariants.invariant(name), seconds=_INVARIANT_SECONDS)
        if isinstance(violation, Refused):
            unseen += 1
        elif isinstance(violation, NotSeen):
            yield "invariants", violation.finding(title)
        elif violation is None:
            yield "invariants", Finding(title, Level.OK, "")
        else:
            summary = f"violated by at least {len(violation.rows)} rows, for example {_shown(violation.rows[0])}"
            todo = "back up the database, find who writes to the tables directly, and read docs/how-to/troubleshooting.md"
            if name == "the_guards_are_in_place":
                todo = "see the findings about guards and tables above for the repair"
            elif name in ("permits_are_counted", "a_limited_queue_has_its_row"):
                todo = "count them anew: call faultline.recount(); if it comes back, find who writes to the tables directly"
            yield "invariants", Finding(title, Level.WRONG, summary, todo, tuple(map(tuple, violation.rows)))
    if unseen:
        summary = f"{unseen} of {len(names)} not checked: this login may not read the tables"
        yield "invariants", Finding("the others", Level.NOTE, summary, "run it as the schema's owner")


def _times(number: int, level: Level) -> str:
    return f"{number} {level}{'s' if number > 1 and level in (Level.NOTE, Level.WARNING) else ''}"


def _going_on(section: str, findings: Iterator[tuple[str, Finding]]) -> Iterator[tuple[str, Finding]]:
    """A section ends if its first questions are not answered, and the next one begins."""
    from faultline.cli.visit import NothingToSay  # noqa: PLC0415

    try:
        yield from findings
    except NothingToSay as nothing:
        yield section, nothing.finding


def _under(section: str, findings: Iterator[Finding]) -> Iterator[tuple[str, Finding]]:
    for finding in findings:
        yield section, finding


def _parted(message: str) -> tuple[str, str]:
    found, _, todo = message.partition("; ")
    return found, todo


def _shown(row: tuple[Any, ...]) -> str:
    return ", ".join(map(str, row))


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
        from faultline.cli import screen  # noqa: PLC0415

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
