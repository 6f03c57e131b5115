"""What a process gets from the machine it runs on: time, chance, a way to the database and, in drills, faults.

Passed in, never patched: production takes `Host()`, a drill names its faults, the simulated world hands in time and wires
of its own.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from faultline.core.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Pulse(Protocol):
    """Calls `tick` again and again, each time after the seconds that it answered with, or earlier when woken.

    Calls `watch` twice a second, also while `tick` hangs.
    """

    def start(self) -> None: ...

    def wake(self) -> None: ...

    async def stop(self, last: Callable[[], None]) -> None:
        """Stop, and call this as the last thing. A TimeoutError says that it hangs and was left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    #: Steady seconds. Leases are trusted by it, never by the time of day.
    monotonic: Callable[[], float] = time.monotonic
    #: The time of day, for what people read.
    seconds: Callable[[], float] = time.time
    chance: random.Random = field(default_factory=random.SystemRandom)
    faults: Faults = field(default_factory=Faults)
    #: Open a connection (a blocking one, an async one). None: psycopg's.
    connect: Callable[..., Any] | None = None
    aconnect: Callable[..., Awaitable[Any]] | None = None
    #: What the heartbeat runs in. None: a thread.
    pulse: Callable[[Callable[[], float], Callable[[], None]], Pulse] | None = None
    #: Start a companion process for each worker. Not where time is simulated or a heart is muted.
    companion: bool = True
