"""Which build of Faultline this is. Builds of one release may differ in code or schema; an upgrade must distinguish them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release_of
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_DIGEST_LENGTH = 8


@cache
def version() -> str:
    """The release, and a digest of code and SQL: the same from a wheel and from a checkout. Some milliseconds, once."""
    try:
        release = release_of("faultline-queue")
    except PackageNotFoundError:
        release = "unknown"
    return f"{release}+{digest(_PACKAGE)}"


def digest(package: Path) -> str:
    found = hashlib.sha256()
    files = {path.relative_to(package).as_posix(): path for kind in ("py", "sql") for path in package.rglob(f"*.{kind}")}
    for name in sorted(files):
        text = files[name].read_bytes()
        found.update(f"{name} {len(text)} ".encode() + text)
    return found.hexdigest()[:_DIGEST_LENGTH]
