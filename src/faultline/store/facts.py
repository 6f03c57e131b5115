"""What a client must know of its database before it sends anything: its protocol fits, the limits, and the time there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.store import migrate
from faultline.store.queue import Statement

if TYPE_CHECKING:
    from datetime import datetime

FACTS = (
    "select p.version, p.serves_from, (select args_bytes_max from faultline.settings), faultline.clock()"
    " from faultline.protocol() p"
)


@dataclass(frozen=True, slots=True)
class Facts:
    args_bytes_max: int
    clock: datetime


def read_facts(row: tuple[Any, ...] | None) -> Facts:
    version, serves_from, args_bytes_max, clock = row or (0, 0, 0, None)
    migrate.check(migrate.Protocol(version, serves_from))
    return Facts(args_bytes_max, clock)


def schema_is_right() -> Statement[Facts]:
    """Raises what is wrong with the schema, also where it was right before."""
    return Statement("schema", FACTS, (), lambda rows: read_facts(rows[0]), repeatable=True)


def read_clock() -> Statement[datetime]:
    return Statement("clock", "select faultline.clock()", (), lambda rows: rows[0][0], repeatable=True, reads=True)
