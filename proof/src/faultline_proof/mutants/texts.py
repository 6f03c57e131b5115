"""Mutants of the texts: a definition as it stands in the package, with one piece of it taken out or replaced.

The piece must stand there exactly once. A definition that has changed since cannot silently disarm its mutants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from faultline.store.install.schema_text import definition_files

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is taken out of a definition, or what is replaced by what. Where one guard stands in two places: both of them.
Change = str | tuple[str, str] | tuple[str, str, tuple[str, str]]
#: By the function, or another file of definitions, in whose text the guards stand.
Guards = Mapping[str, Mapping[str, Change]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """The protocol without one guard: SQL to be run on a freshly migrated database."""

    #: What is taken out, as a sentence: `complete: compares the token`.
    guard: str
    #: What it is about, the most telling word first. Probes about the same are tried first.
    about: tuple[str, ...]
    sql: str


class Disarmed(Exception):
    """A piece of text that a mutant replaces does not stand exactly once where it should. Renew the mutant."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One guard in the text of a function (`complete`) or of another file of definitions (`guards.sql`)."""

    place: str
    guard: str
    piece: str
    instead: str = ""
    #: Where one guard stands in two places: a further piece and what comes instead.
    also: tuple[str, str] | None = None

    def mutant(self, *about: str) -> Mutant:
        text = definition(self.place)
        for piece, instead in ((self.piece, self.instead), *((self.also,) if self.also else ())):
            found = text.count(piece)
            if found != 1:
                raise Disarmed(f"{self.name}: the piece that it replaces stands {found} times in {self.place}: {piece!r}")
            text = text.replace(piece, instead)
        return Mutant(self.name, (*about, self.place), text)

    @property
    def name(self) -> str:
        return f"{self.place.removesuffix('.sql')}: {self.guard}"


def cuts(guards: Guards) -> list[Cut]:
    return [
        Cut(place, guard, change) if isinstance(change, str) else Cut(place, guard, *change)
        for place, changes in guards.items()
        for guard, change in changes.items()
    ]


@cache
def definition(place: str) -> str:
    """The text of a function's file, or of another file of definitions."""
    return {file.name + ".sql" * (not file.is_function): file.text for file in definition_files()}[place]


@cache
def functions() -> tuple[str, ...]:
    return tuple(file.name for file in definition_files() if file.is_function)


#: Several settings tell the planner what not to do. They are one guard: any of them may stand in for another.
_PLANNER = re.compile(r"^set (?!search_path)[^$]*(?=as \$)", re.MULTILINE)
_EVERYWHERE = (
    ("runs with the rights of its owner", " security definer", "role"),
    ("looks for names where nobody can put any", "set search_path = pg_catalog, pg_temp\n", "role"),
    ("commits to the disk", "perform faultline.require_synchronous_commit();", "require_synchronous_commit"),
    ("leaves no door open", "perform faultline.set_current_verb('');", "door"),
)


def common() -> Iterator[tuple[Cut, str]]:
    """The guards that stand in many functions alike, found in their texts, and what each is about."""
    for function in functions():
        text = definition(function)
        for settings in _PLANNER.findall(text):
            yield Cut(function, "plans for full tables", settings), "plan"
        for guard, piece, about in _EVERYWHERE:
            if piece in text:
                yield Cut(function, guard, piece, "" if about == "role" else "null;"), about
        for call in re.findall(r"perform faultline\.check_leases\(.*\);", text):
            yield Cut(function, "refuses half a lease", call, "null;"), "half"
        for call in re.findall(r"perform faultline\.check_most\(.*\);", text):
            yield Cut(function, "refuses to look at less than nothing", call, "null;"), "most"
