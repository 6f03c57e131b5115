"""What a client must know of its database before it sends anything: that the protocol fits, the limits, and the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.core.bounds import ARGS_BYTES_MAX, RESULT_BYTES_MAX
from faultline.store.install import migrate
from faultline.store.rows import RowOf, value
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from datetime import datetime

    from faultline.store.statement import Rows


class _Row(NamedTuple):
    version: int
    serves_from: int
    #: As JSON: a database that was not migrated lacks some columns, and must get our error, not PostgreSQL's.
    settings: dict[str, Any] | None
    clock: datetime


_ROW = RowOf(_Row, settings="(select to_jsonb(s) from faultline.settings s)", clock="faultline.clock()")
FACTS = f"select {_ROW.columns} from faultline.protocol()"


@dataclass(frozen=True, slots=True)
class Facts:
    args_bytes_max: int
    result_bytes_max: int
    clock: datetime


def read_facts(row: tuple[Any, ...] | None) -> Facts:
    found = _ROW.one([row or (0, 0, {}, None)])
    migrate.check(migrate.Protocol(found.version, found.serves_from))
    settings = found.settings or {}  # the row is lost: the doctor reports it, and `migrate` restores it
    args_bytes_max = settings.get("args_bytes_max", ARGS_BYTES_MAX)
    return Facts(args_bytes_max, settings.get("result_bytes_max", RESULT_BYTES_MAX), found.clock)


class _Writable(NamedTuple):
    writable: bool


_WRITABLE = RowOf(_Writable, writable="current_setting('transaction_read_only') = 'off'")


def takes_writes() -> Statement[bool]:
    """Whether the database accepts writes: a standby does not. Raises if the schema does not fit (any more)."""

    def read(rows: Rows) -> bool:
        read_facts(rows[0])
        return _WRITABLE.many(rows, behind=_ROW)[0].writable

    sql = f"select {_ROW.columns}, {_WRITABLE.columns} from faultline.protocol()"
    return Statement("schema", sql, (), read, repeatable=True)


def read_clock() -> Statement[datetime]:
    return Statement("clock", "select faultline.clock()", (), value, repeatable=True, reads=True)
