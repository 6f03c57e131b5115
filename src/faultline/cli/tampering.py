"""What a doctor makes of a schema that is not as `migrate` left it: after a restore, a failover, or somebody's own SQL."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from faultline.cli.checks import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faultline.store.install.installed import Foreign
    from faultline.store.install.shape import Lack, Numbering
    from faultline.store.reads.vitals import LostHistory
    from faultline.store.statement import Statement

_SHOWN = 6
_MIGRATE = "run: faultline migrate"


def about_definitions() -> Iterator[tuple[Callable[..., Iterator[Finding]], Statement[Any]]]:
    """Each check, and what it asks. For a database with this build's version."""
    from faultline.store.install import installed, shape  # noqa: PLC0415 - late, so that --help is quick

    yield functions, installed.functions()
    yield guards, installed.guards()
    yield tables, shape.lacks()
    yield numbering, shape.numbering()
    yield views, installed.views()
    yield grants, installed.grants()
    yield excess, installed.excess_grants()
    yield everybody, installed.public_grants()
    yield rows, installed.rows()
    yield foreign, installed.foreign()
    yield indexes, installed.missing_indexes()


def functions(altered: Sequence[str]) -> Iterator[Finding]:
    if altered:
        yield Finding("functions", Level.WRONG, _listed(altered), f"somebody changed them; {_MIGRATE}", tuple(altered))
    else:
        yield Finding("functions", Level.OK, "as this build has them")


def guards(altered: Sequence[str]) -> Iterator[Finding]:
    if altered:
        told = f"missing, switched off or altered: {_listed(altered)}"
        yield Finding("guards", Level.WRONG, told, f"{_MIGRATE}; then look for what was written meanwhile", tuple(altered))
    else:
        yield Finding("guards", Level.OK, "the triggers are as this build has them")


def tables(lacks: Sequence[Lack]) -> Iterator[Finding]:
    if lacks:
        told = _listed([lack.what for lack in lacks])
        # It reads the table and holds up everybody meanwhile, and rows that came in since may stand against it.
        todo = "look for what was written meanwhile; then, as the owner and in a quiet hour, since it locks the table: "
        cures = _listed([lack.cure for lack in lacks], "; ")
        yield Finding("tables", Level.WRONG, told, f"{todo}{cures}", tuple(map(tuple, lacks)))
    else:
        yield Finding("tables", Level.OK, "have the constraints and defaults of this build")


def numbering(seen: Numbering | None) -> Iterator[Finding]:
    if seen and seen.behind:
        told = f"the journal has entries up to {seen.greatest} and counts on from {seen.last or 0}: verbs that journal fail"
        todo = f"{_MIGRATE}, which sets it right. Logical replication and setval do that"
        yield Finding("numbering", Level.WRONG, told, todo)
    elif seen and not seen.plain:
        told = f"{seen.sequence}, which numbers the journal, does not count one by one, or not without end"
        yield Finding("numbering", Level.WRONG, told, f"{_MIGRATE}, which sets it right")
    elif seen and not seen.seen:
        yield Finding("numbering", Level.NOTE, "not seen: whether the journal counts on from its end", "ask as the owner")


def files(unrecorded: Sequence[str]) -> Iterator[Finding]:
    if unrecorded:
        told = f"not on record in schema_files: {_listed(unrecorded)}"
        yield Finding("files", Level.WRONG, told, f"{_MIGRATE}, which looks whether they were applied")


def views(missing: Sequence[str]) -> Iterator[Finding]:
    if missing:
        yield Finding("views", Level.WRONG, f"missing or altered: {_listed(missing)}", _MIGRATE)


def grants(missing: Sequence[str]) -> Iterator[Finding]:
    """Roles that do not exist are the business of another check."""
    lacking = [grant for grant in missing if not grant.endswith("does not exist")]
    if lacking:
        yield Finding("grants", Level.WARNING, f"missing: {_listed(lacking)}", _MIGRATE, tuple(lacking))


def excess(granted: Sequence[str]) -> Iterator[Finding]:
    if granted:
        told = f"more than this build grants: {_listed(granted)}"
        yield Finding("excess", Level.WRONG, told, f"find out who granted it; {_MIGRATE}, which revokes it", tuple(granted))


def rows(missing: Sequence[str]) -> Iterator[Finding]:
    """The floor of the tokens stood there: the new row has one that is above every token that was granted."""
    for table in missing:
        told = f"the one row of {table} is gone: its limits, and the floor of the tokens"
        yield Finding("rows", Level.WRONG, told, f"{_MIGRATE}, which makes a new one")


def everybody(granted: Sequence[str]) -> Iterator[Finding]:
    if granted:
        told = f"every login may: {_listed(granted)}"
        yield Finding("public", Level.WRONG, told, f"find out who granted it; {_MIGRATE}, which revokes it", tuple(granted))


def foreign(found: Sequence[Foreign]) -> Iterator[Finding]:
    """Each kind by itself, with what takes it away: some of it was done to tables of ours, which nobody must drop."""
    for _, group in groupby(found, key=lambda thing: thing.kind):
        things = list(group)
        told = f"not Faultline's doing: {_listed([thing.what for thing in things])}"
        todo = f"it can change what the verbs do. Find out who did it, then: {_listed([t.cure for t in things], '; ')}"
        yield Finding("foreign", Level.WRONG, told, todo, tuple(map(tuple, things)))


def indexes(missing: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    for name, statement in missing:
        todo = statement.replace(" index ", " index concurrently ", 1)
        yield Finding(
            "indexes",
            Level.WARNING,
            f"{name} is missing, was never finished, or is another one",
            f"drop it if it exists, then: {todo}",
        )


def history(lost: LostHistory) -> Iterator[Finding]:
    if lost.jobs and lost.since:
        told = (
            f"since {lost.since:%Y-%m-%d %H:%M:%S %Z} workers wrote under {lost.jobs} leases that this database never gave"
        )
        todo = "it has lost commits, by a failover or a restore. Run: faultline recover; jobs of that time may be missing"
        yield Finding("history", Level.WARNING, told, todo)


def _listed(things: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
    return between.join(things[:_SHOWN]) + more
