"""What a client must know of its database before it sends anything: its protocol fits, the limits, and the time there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.store.install import migrate
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.store.statement import Rows

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


def takes_writes() -> Statement[bool]:
    """Whether the database takes writes: a standby does not. Raises what is wrong with the schema, also if it was right."""

    def read(rows: Rows) -> bool:
        *facts, writable = rows[0]
        read_facts(tuple(facts))
        return bool(writable)

    sql = f"select f.*, current_setting('transaction_read_only') = 'off' from ({FACTS}) f"
    return Statement("schema", sql, (), read, repeatable=True)


def read_clock() -> Statement[datetime]:
    return Statement("clock", "select faultline.clock()", (), lambda rows: rows[0][0], repeatable=True, reads=True)
