"""Check whether the schema is as `migrate` left it. A restore, a failover or hand-written SQL can change it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from faultline.doctor.checks import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faultline.store.install.constraints import Lack, Numbering
    from faultline.store.install.schema_diff import Foreign
    from faultline.store.reads.doctor_queries import LostHistory
    from faultline.store.statement import Statement

_SHOWN = 6
_MIGRATE = "run: faultline migrate"


def about_definitions() -> Iterator[tuple[Callable[..., Iterator[Finding]], Statement[Any]]]:
    """Each check, and what it reads. For a database of this build's version."""
    from faultline.store.install import constraints, schema_diff  # noqa: PLC0415 - late, so that --help is quick

    yield functions, schema_diff.functions()
    yield guards, schema_diff.guards()
    yield tables, constraints.lacks()
    yield numbering, constraints.numbering()
    yield views, schema_diff.views()
    yield grants, schema_diff.grants()
    yield excess, schema_diff.excess_grants()
    yield everybody, schema_diff.public_grants()
    yield rows, schema_diff.rows()
    yield foreign, schema_diff.foreign()
    yield indexes, schema_diff.missing_indexes()


def functions(altered: Sequence[str]) -> Iterator[Finding]:
    if altered:
        yield Finding("functions", Level.WRONG, _listed(altered), f"they were changed; {_MIGRATE}", tuple(altered))
    else:
        yield Finding("functions", Level.OK, "the same as in this build")


def guards(altered: Sequence[str]) -> Iterator[Finding]:
    if altered:
        fact = f"missing, disabled or altered: {_listed(altered)}"
        yield Finding("guards", Level.WRONG, fact, f"{_MIGRATE}; then check what was written meanwhile", tuple(altered))
    else:
        yield Finding("guards", Level.OK, "the triggers are the same as in this build")


def tables(lacks: Sequence[Lack]) -> Iterator[Finding]:
    if lacks:
        fact = _listed([lack.what for lack in lacks])
        # It reads the whole table and blocks everybody meanwhile, and new rows may violate it.
        todo = "check what was written meanwhile; then, as the owner and when the load is low (it locks the table): "
        cures = _listed([lack.cure for lack in lacks], "; ")
        yield Finding("tables", Level.WRONG, fact, f"{todo}{cures}", tuple(map(tuple, lacks)))
    else:
        yield Finding("tables", Level.OK, "have the constraints and defaults of this build")


def numbering(seen: Numbering | None) -> Iterator[Finding]:
    if seen and seen.behind:
        fact = f"the journal has entries up to {seen.greatest}, but its sequence is at {seen.last or 0}: writes to it fail"
        todo = f"{_MIGRATE}, which repairs it. Logical replication and setval can cause this"
        yield Finding("numbering", Level.WRONG, fact, todo)
    elif seen and not seen.plain:
        fact = f"{seen.sequence}, the journal's sequence, has an increment other than 1 or an upper limit"
        yield Finding("numbering", Level.WRONG, fact, f"{_MIGRATE}, which repairs it")
    elif seen and not seen.seen:
        yield Finding(
            "numbering",
            Level.NOTE,
            "not checked: whether the journal's sequence is past its last entry",
            "run it as the owner",
        )


def files(unrecorded: Sequence[str]) -> Iterator[Finding]:
    if unrecorded:
        fact = f"not recorded in schema_files: {_listed(unrecorded)}"
        yield Finding("files", Level.WRONG, fact, f"{_MIGRATE}, which checks whether they were applied")


def views(missing: Sequence[str]) -> Iterator[Finding]:
    if missing:
        yield Finding("views", Level.WRONG, f"missing or altered: {_listed(missing)}", _MIGRATE)


def grants(missing: Sequence[str]) -> Iterator[Finding]:
    """Another check reports roles that do not exist."""
    lacking = [grant for grant in missing if not grant.endswith("does not exist")]
    if lacking:
        yield Finding("grants", Level.WARNING, f"missing: {_listed(lacking)}", _MIGRATE, tuple(lacking))


def excess(granted: Sequence[str]) -> Iterator[Finding]:
    if granted:
        fact = f"more than this build grants: {_listed(granted)}"
        yield Finding("excess", Level.WRONG, fact, f"find out who granted it; {_MIGRATE}, which revokes it", tuple(granted))


def rows(missing: Sequence[str]) -> Iterator[Finding]:
    """The row held the floor of the tokens: the new row has one above every token ever used."""
    for table in missing:
        fact = f"the only row of {table} is missing: it holds the limits and the floor of the tokens"
        yield Finding("rows", Level.WRONG, fact, f"{_MIGRATE}, which creates a new one")


def everybody(granted: Sequence[str]) -> Iterator[Finding]:
    if granted:
        fact = f"every login may: {_listed(granted)}"
        yield Finding("public", Level.WRONG, fact, f"find out who granted it; {_MIGRATE}, which revokes it", tuple(granted))


def foreign(found: Sequence[Foreign]) -> Iterator[Finding]:
    """Each kind separately, with its own repair: Faultline's own tables must not be dropped."""
    for _, group in groupby(found, key=lambda thing: thing.kind):
        things = list(group)
        fact = f"not created by Faultline: {_listed([thing.what for thing in things])}"
        todo = f"it can change what the functions do. Find out who did it, then: {_listed([t.cure for t in things], '; ')}"
        yield Finding("foreign", Level.WRONG, fact, todo, tuple(map(tuple, things)))


def indexes(missing: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    for name, statement in missing:
        todo = statement.replace(" index ", " index concurrently ", 1)
        yield Finding(
            "indexes",
            Level.WARNING,
            f"{name} is missing, invalid, or has another definition",
            f"drop it if it exists, then: {todo}",
        )


def history(lost: LostHistory) -> Iterator[Finding]:
    if lost.jobs and lost.since:
        fact = f"since {lost.since:%Y-%m-%d %H:%M:%S %Z} workers wrote under {lost.jobs} leases unknown to this database"
        todo = "a failover or a restore lost commits. Run: faultline recover; jobs of that time may be missing"
        yield Finding("history", Level.WRONG, fact, todo)


def _listed(things: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
    return between.join(things[:_SHOWN]) + more
