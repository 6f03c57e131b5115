"""Somebody who asks: what they may do, and what of all that there is they may see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from faultline import operate

if TYPE_CHECKING:
    from faultline.store.reads.overview import WorkerLine

#: Everybody on this machine, while there are no keys.
LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and what they may do."""

    #: Of whom no other caller's keys and limits are: the API key's id, or "loopback".
    id: str
    name: str
    scopes: frozenset[str]
    #: The queues it is bound to; None: all.
    queues: frozenset[str] | None = None
    #: What its forms must carry; None for callers that show a key with every request.
    csrf: str | None = None

    @property
    def only_queues(self) -> list[str] | None:
        """For statements."""
        return None if self.queues is None else sorted(self.queues)

    def signed(self, where: str = "") -> str:
        """How the journal names the caller: users choose a key's name, but not its id."""
        key = f"API key {self.id[:12]}" if self.id != LOOPBACK else "no API key"
        return f"{operate.plain(self.name)} ({key}{where})"

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    @property
    def sees_keys(self) -> bool:
        """Who holds which key concerns the whole server."""
        return self.may("admin") and self.queues is None

    def may_touch(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues


def seen_by(caller: Caller, workers: list[WorkerLine]) -> list[WorkerLine]:
    """A key that is restricted to queues sees the workers that serve them, and of each worker only these queues."""
    if caller.queues is None:
        return list(workers)
    bound = [
        replace(
            line,
            queues=[name for name in line.queues if caller.may_touch(name)],
            sleeping=[name for name in line.sleeping if caller.may_touch(name)],
        )
        for line in workers
    ]
    return [line for line in bound if line.queues]
