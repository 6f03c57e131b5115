"""A PostgreSQL of one's own in a temporary folder, for what must be fast or may be broken."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from faultline import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Crashes of the machine are not what is simulated, and waiting for the disk would be most of the time.
#: And a vacuum that comes at its own time moves rows and changes plans: one seed would not be one history.
IN_MEMORY = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off"}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's folder in memory
_ROOM_BYTES = 2 * 1024**3


@contextlib.contextmanager
def own_server(settings: dict[str, str]) -> Iterator[str]:
    """Start one, give its DSN, and leave nothing of it behind."""
    fast = os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free > _ROOM_BYTES
    place = Path(tempfile.mkdtemp(prefix="faultline-", dir=_SHARED_MEMORY if fast else None))
    try:
        with embedded.join(place / "server", settings=settings) as server:
            yield server.dsn
    finally:
        embedded.destroy(place / "server")
        shutil.rmtree(place, ignore_errors=True)
