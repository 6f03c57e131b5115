"""A file in memory, for what processes of a worker share. The companion imports it, and must start fast."""

from __future__ import annotations

import os
import tempfile


def nameless_file(name: str) -> int:
    """A file in memory, reachable only through its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile(prefix=name) as file:  # pragma: no cover - not on Linux
        return os.dup(file.fileno())
