"""What a process gets from its machine: time, random numbers, connections and, in drills, faults.

Passed in, never patched: production uses `Host()`, a drill sets faults, the simulated world its time and connections.
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
    """Calls `tick` repeatedly, each time after the seconds that it returned, or earlier if woken.

    Calls `watch` twice a second, even while `tick` hangs.
    """

    def start(self) -> None: ...

    def wake(self) -> None: ...

    async def stop(self, last: Callable[[], None]) -> None:
        """Stop, and call `last` at the end. Raises TimeoutError if it hangs; its thread is abandoned then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    #: Monotonic seconds. Leases are timed by this clock, never by the time of day.
    monotonic: Callable[[], float] = time.monotonic
    #: The time of day, for what people read.
    seconds: Callable[[], float] = time.time
    chance: random.Random = field(default_factory=random.SystemRandom)
    faults: Faults = field(default_factory=Faults)
    #: Open a connection (a blocking one, an async one). None: psycopg's.
    connect: Callable[..., Any] | None = None
    aconnect: Callable[..., Awaitable[Any]] | None = None
    #: Runs the heartbeat. None: a thread.
    pulse: Callable[[Callable[[], float], Callable[[], None]], Pulse] | None = None
    #: Start a companion process for each worker. Not in simulated time, nor where a drill stops the heartbeat.
    companion: bool = True
