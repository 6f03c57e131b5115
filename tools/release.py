"""Make the release of the commit that is checked out: `make release`. It builds, tries and tags it, and publishes nothing.

A release that cannot be made again from its tag is refused: changes that are not committed, a changelog without the date, a
tag that is taken.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from typing import TYPE_CHECKING

from tools import dist

if TYPE_CHECKING:
    from pathlib import Path

_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


def refusals(root: Path) -> list[str]:
    """Why this commit cannot be released, and what to do."""
    version = dist.version(root)
    found = []
    changed = _git(root, "status", "--porcelain").strip()
    if changed:
        found.append(f"There are changes that are not committed. Commit them, or take them away:\n{changed}")
    heading = next(iter(_HEADING.findall((root / "CHANGELOG.md").read_text())), "")
    if not _is_dated(heading, version):
        found.append(f"The changelog begins with `## {heading}`. Give the release its date: `## {version} (YYYY-MM-DD)`.")
    if _git(root, "tag", "--list", f"v{version}"):
        found.append(f"There is a tag v{version} already. Raise the version in both pyproject.toml.")
    return found


def _is_dated(heading: str, version: str) -> bool:
    named, _, day = heading.partition(" ")
    try:
        date.fromisoformat(day.strip("()"))
    except ValueError:
        return False
    return named == version and day == f"({day.strip('()')})"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


def main() -> None:
    found = refusals(dist.ROOT)
    if found:
        sys.exit("\n".join(["Nothing was released.", *found]))
    dist.main()
    version = dist.version()
    _git(dist.ROOT, "tag", "--annotate", f"v{version}", "--message", f"Faultline {version}")
    dist.say(f"tagged v{version}; next: git push origin v{version}, upload dist/*, make previous")


if __name__ == "__main__":
    main()
