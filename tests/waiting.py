"""How tests wait for what others do: for a condition and never for a time, and long enough for a busy machine."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
#: Only a test that fails waits so long.
PATIENCE = 300.0


def until(
    condition: Callable[[], T | None],
    seconds: float = PATIENCE,
    *,
    otherwise: str = "it did not happen in time",
    despite: tuple[type[Exception], ...] = (),
) -> T:
    """What the condition gives, once that is true. An error in `despite` is as good as false."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except despite:
            pass
        else:
            if found:
                return found
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.02)


async def auntil(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """The same in an event loop, which goes on meanwhile."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
