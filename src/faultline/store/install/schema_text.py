"""The schema of this build: numbered files, definitions, and the version of the protocol.

Numbered files (`0001_initial.sql`) change what is stored: each is applied once and never edited afterwards. Definitions
(functions, guards, views, roles) hold no data and can be replaced at any time.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

#: A string, which stays, or a comment, which goes.
_COMMENT = re.compile(r"('(?:[^']|'')*')|--[^\n]*")
#: A function, from the comment lines right above it.
_FUNCTION = re.compile(r"^(?:--[^\n]*\n)*create or replace function faultline\.", re.MULTILINE)
#: Folders of the schema that are no subjects.
_NO_FUNCTIONS = ("migrations", "invariants", "__pycache__")


#: The records of applied numbered files.
BOOK = """
create schema if not exists faultline;
create table if not exists faultline.schema_files (
  number integer primary key,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default clock_timestamp()
);
"""


class Protocol(NamedTuple):
    """The version of a set of definitions, and the oldest version whose clients it serves."""

    version: int
    serves_from: int


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, or all overloads of one, or a file of other things: `name` is that of the function, or of the file."""

    name: str
    text: str
    is_function: bool


@cache
def numbered() -> tuple[Migration, ...]:
    files = sorted((f for f in folder().joinpath("migrations").iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return tuple(Migration(int(f.name[:4]), f.name.removesuffix(".sql"), f.read_text()) for f in files)


@cache
def definitions() -> Migration:
    """All definitions as one text that can be run."""
    text = "\n".join(definition.text for definition in definition_files())
    return Migration(0, "definitions", f"set local check_function_bodies = off;\n{text}")


@cache
def definition_files() -> tuple[Definition, ...]:
    """In the order of their application: functions, guards, views, roles."""
    return tuple(_definition_files())


def _definition_files() -> Iterator[Definition]:
    functions = [function for file in _function_files(folder()) for function in _functions_in(file)]
    yield from sorted(functions, key=lambda function: function.name)
    for name in ("guards", "views", "roles"):
        yield Definition(name, folder().joinpath(f"{name}.sql").read_text(), is_function=False)


def functions_in(text: str) -> list[Definition]:
    """The functions of a file, each with the comment above it. Overloads belong together."""
    found: dict[str, list[str]] = {}
    starts = [match.start() for match in _FUNCTION.finditer(text)]
    for start, end in pairwise([*starts, len(text)]):
        part = text[start:end].rstrip() + "\n"
        name = part.partition("create or replace function faultline.")[2].partition("(")[0]
        found.setdefault(name, []).append(part)
    return [Definition(name, "\n".join(parts), is_function=True) for name, parts in found.items()]


def _functions_in(file: Traversable) -> list[Definition]:
    """A file that chooses a function by the server's version has one."""
    text = file.read_text()
    return functions_in(text) or [Definition(file.name.removesuffix(".sql"), text, is_function=True)]


def _function_files(folder: Traversable, *, below_subject: bool = False) -> Iterator[Traversable]:
    """Each subject has a folder: a file for each verb that clients call, and `internal` for their steps."""
    for part in folder.iterdir():
        if part.is_dir() and part.name not in _NO_FUNCTIONS:
            yield from _function_files(part, below_subject=True)
        elif below_subject and part.name.endswith(".sql"):
            yield part


def function_text(name: str) -> str:
    """The definition of one function, with its comment."""
    return next(definition.text for definition in definition_files() if definition.is_function and definition.name == name)


@cache
def fingerprint() -> str:
    """A digest of the definitions that ignores comments and spaces."""
    return hashlib.sha256(meaning(definitions().text).encode()).hexdigest()


@cache
def protocol() -> Protocol:
    return protocol_in(function_text("protocol"))


def protocol_in(text: str) -> Protocol:
    """The version that the text of the function `protocol` returns."""
    found = re.search(r"select (\d+), (\d+)", text)
    assert found, "base/internal/protocol.sql must say: select VERSION, SERVES_FROM"  # noqa: S101 - a bug of ours
    return Protocol(int(found[1]), int(found[2]))


def meaning(text: str) -> str:
    """SQL without comments, and with single spaces."""
    return " ".join(_COMMENT.sub(lambda match: match[1] or " ", text).split())


def folder() -> Traversable:
    return resources.files("faultline.schema")
