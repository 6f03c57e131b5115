"""How much memory this process uses."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()


def memory_bytes() -> int:
    """What it uses now; where the kernel does not say, the most that it has used."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
