"""A file system on which there is no room left, for tests."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def full_file_system(folder: Path) -> Iterator[Path]:
    """Of 64 KiB, all of which are in use."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.decode().strip()}")
    try:
        with contextlib.suppress(OSError):
            (folder / "fills").write_bytes(bytes(128 * 1024))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
