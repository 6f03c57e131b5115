"""The caller of a request: what it may do, and what it may see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from faultline import operate

if TYPE_CHECKING:
    from faultline.store.reads.overview import WorkerLine

#: Everybody on this machine, while there are no keys.
LOOPBACK = "loopback"
_VISITOR = "visitor "


@dataclass(frozen=True, slots=True)
class Caller:
    #: The API key's id, or "loopback". Idempotency keys and limits belong to it.
    id: str
    name: str
    scopes: frozenset[str]
    #: The queues it is restricted to; None: all.
    queues: frozenset[str] | None = None
    #: The token of its forms; None for callers that send a key with every request.
    csrf: str | None = None

    @property
    def only_queues(self) -> list[str] | None:
        return None if self.queues is None else sorted(self.queues)

    @property
    def is_visitor(self) -> bool:
        """Known by the program that the dashboard is mounted in, not by a key."""
        return self.id.startswith(_VISITOR)

    def signed(self, where: str = "") -> str:
        """How the journal names the caller: users choose a key's name, but not its id."""
        if self.is_visitor:
            return f"{operate.plain(self.name)} (signed in{where})"
        key = f"API key {self.id[:12]}" if self.id != LOOPBACK else "no API key"
        return f"{operate.plain(self.name)} ({key}{where})"

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    @property
    def sees_keys(self) -> bool:
        """Keys concern the whole server."""
        return self.may("admin") and self.queues is None

    def may_touch(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues


def visiting(name: str, scopes: tuple[str, ...], queues: tuple[str, ...] | None, csrf: str) -> Caller:
    """A user of the program that the dashboard is mounted in."""
    return Caller(f"{_VISITOR}{name}", name, frozenset(scopes), None if queues is None else frozenset(queues), csrf)


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
