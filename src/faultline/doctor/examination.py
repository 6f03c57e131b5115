"""Examine a database: one question after the other, each answer turned into findings by the checks. It changes nothing.

The command line prints the findings.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from faultline.core.errors import DatabaseUnavailable, SchemaError, StatementTimeout
from faultline.core.settings import choose_timeout
from faultline.doctor import checks, limit_checks, login_checks, schedule_checks, schema_checks
from faultline.doctor.checks import Finding, Level
from faultline.doctor.session import ExaminationSession, NothingToSay, NotSeen, Refused
from faultline.store.install import constraints, migrate
from faultline.store.reads import (
    doctor_queries,
    groups,
    health,
    invariants,
    limit_holders,
    limits,
    logins,
    overview,
    schedules,
    suspended,
    views,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.store.reads.doctor_queries import Server

#: How long one invariant may take: it reads every row.
_INVARIANT_SECONDS = 600.0
#: Shows a line while its block runs: with much data an invariant takes long.
Progress = Callable[[str], AbstractContextManager[None]]


def examine(dsn: str, progress: Progress) -> Iterator[tuple[str, Finding]]:
    """One connection, one question after the other; an unanswered one does not stop the rest."""
    try:
        with contextlib.closing(ExaminationSession(dsn, choose_timeout())) as session:
            yield from _going_on("server", _looked_at(session, progress))
    except DatabaseUnavailable as error:
        yield "server", checks.unreachable(str(error))
    except StatementTimeout:
        yield "server", checks.cut_short()


def _looked_at(session: ExaminationSession, progress: Progress) -> Iterator[tuple[str, Finding]]:
    server = session.must(doctor_queries.server())
    yield from _under("server", checks.server(server, pooler=session.pooler))
    yield from _under("settings", session.about(checks.settings, doctor_queries.settings(checks.SETTINGS)))
    try:
        protocol = session.look(doctor_queries.protocol())
        if isinstance(protocol, NotSeen):
            todo = session.must(doctor_queries.way_in()) if isinstance(protocol, Refused) else protocol.todo
            yield "schema", Finding("schema", Level.WRONG, protocol.found, todo)
            return
        migrate.check(protocol)
    except SchemaError as error:
        yield "schema", Finding("schema", Level.WRONG, *_parted(str(error)))
        return
    yield "schema", checks.protocol(protocol, migrate.protocol())
    if protocol.version == migrate.protocol().version:
        for check, statement in schema_checks.about_definitions():
            yield from _under("schema", session.about(check, statement))
        unrecorded = session.look(constraints.unrecorded())
        if not isinstance(unrecorded, NotSeen):
            yield from _under("schema", schema_checks.files(unrecorded))
    yield from _under("schema", session.about(checks.roles, doctor_queries.roles(), superuser=server.is_superuser))
    yield from _under("schema", session.about(login_checks.logins, logins.logins()))
    yield from _under("schema", session.about(schema_checks.history, doctor_queries.lost_history()))
    yield from _going_on("housekeeping", _housekeeping(session, server))
    yield from _going_on("work", _at_work(session, server))
    yield from _invariants(session, progress)


def _housekeeping(session: ExaminationSession, server: Server) -> Iterator[tuple[str, Finding]]:
    def durable(standbys: list[doctor_queries.Standby]) -> Iterator[Finding]:
        settings = session.must(doctor_queries.settings(checks.SETTINGS))
        return checks.durability(settings, standbys, sees_sessions=server.sees_sessions)

    yield from _under("housekeeping", session.about(durable, doctor_queries.standbys()))
    seen, slots, never = (
        session.must(health.health()),
        session.must(doctor_queries.slots()),
        session.must(doctor_queries.never_vacuumed()),
    )
    yield from _under("housekeeping", session.about(checks.kept, views.settings()))
    yield from _under("housekeeping", checks.held_back(seen, slots))
    yield from _under("housekeeping", checks.bloat(seen, never))


def _at_work(session: ExaminationSession, server: Server) -> Iterator[tuple[str, Finding]]:
    before = time.time()
    now = session.must(doctor_queries.server()).clock
    ahead = (before + time.time()) / 2 - now.timestamp()
    workers = yield from session.list_of("workers", overview.workers())
    waiting = yield from session.list_of("waiting", doctor_queries.waiting())
    yield from _under("work", checks.clocks(ahead, workers or []))
    yield from _under("work", session.about(checks.connections, health.health(), workers))
    if workers is not None and waiting is not None:
        yield from _under("work", session.about(checks.at_work, doctor_queries.overdue(), workers, waiting))
    if workers is not None:
        yield from _under("work", session.about(checks.known_tasks, doctor_queries.waiting_tasks(), workers))
    yield from _flows(session)
    yield from _under("work", session.about(schedule_checks.schedules, schedules.schedules()))
    yield from _under("work", session.about(limit_checks.holders, limit_holders.limit_holders()))
    yield from _under("work", session.about(limit_checks.use, groups.in_use(), workers or []))
    yield from _under("work", session.about(limit_checks.orphans, limits.limits()))
    paused = yield from session.list_of("paused", doctor_queries.paused())
    yield from _under("work", session.about(checks.set_aside, doctor_queries.failed(), paused or [], server.clock))


def _flows(session: ExaminationSession) -> Iterator[tuple[str, Finding]]:
    totals = session.look(suspended.totals())
    if isinstance(totals, NotSeen):
        yield "work", totals.finding("flows")
        return
    some = [session.look(suspended.for_nothing()), session.look(suspended.changed_programs())]
    known = [suspended.Some(0, None) if isinstance(one, NotSeen) else one for one in some]
    yield from _under("work", checks.flows(totals, *known))


def _invariants(session: ExaminationSession, progress: Progress) -> Iterator[tuple[str, Finding]]:
    """With much data it takes long, so a terminal shows which invariant is being checked."""
    names, unseen = invariants.names(), 0
    for number, name in enumerate(names, start=1):
        title = name.replace("_", " ")
        with progress(f"checking {number} of {len(names)}: {title}"):
            violation = session.look(invariants.invariant(name), seconds=_INVARIANT_SECONDS)
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


def _going_on(section: str, findings: Iterator[tuple[str, Finding]]) -> Iterator[tuple[str, Finding]]:
    """A section ends if its first questions are not answered, and the next one begins."""
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
