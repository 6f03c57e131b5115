"""What stands in the WAL between two places, by kind of record. Images of whole pages are counted apart.

A page is logged as a whole when it is first changed after a checkpoint, so these bytes say how often the server checkpoints;
the rest is what the statements cost. Read with the extension pg_walinspect where the server has it, else with the program
pg_waldump of the private server; with neither, nothing is known.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from faultline.embedded import find_binaries

if TYPE_CHECKING:
    import psycopg

_LINE = re.compile(r"^(\S+/\S+)\s+(\d+) \([^)]*\)\s+(\d+) \([^)]*\)\s+(\d+) \([^)]*\)")


class Record(NamedTuple):
    kind: str
    records: int
    #: Without images of whole pages.
    size: int
    images: int


def place(connection: psycopg.Connection) -> str:
    """Behind everything that was written so far. It is on the disk then, where it can be read."""
    with connection.transaction():
        connection.execute("set local synchronous_commit = on")
        # Something of its own to write: a commit without is not waited for.
        connection.execute("select pg_logical_emit_message(true, 'faultline', '')")
    row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    return str(row[0]) if row else ""


def between(connection: psycopg.Connection, start: str, end: str) -> list[Record]:
    """The kinds of records from one place to the other, the largest first. Empty where they cannot be read."""
    found = _inspected(connection, start, end)
    if found is None:
        found = _dumped(connection, start, end)
    return sorted(found, key=lambda record: -record.size)


def _inspected(connection: psycopg.Connection, start: str, end: str) -> list[Record] | None:
    if not connection.execute("select 1 from pg_available_extensions where name = 'pg_walinspect'").fetchone():
        return None
    connection.execute("create extension if not exists pg_walinspect with schema public")
    rows = connection.execute(
        'select "resource_manager/record_type", count, record_size, fpi_size from public.pg_get_wal_stats(%s, %s, true)'
        " where count > 0",
        (start, end),
    ).fetchall()
    return [Record(kind, int(count), int(size), int(images)) for kind, count, size, images in rows]


def _dumped(connection: psycopg.Connection, start: str, end: str) -> list[Record]:
    binaries = find_binaries()
    folder = connection.execute("show data_directory").fetchone()
    if folder is None or binaries.major != connection.info.server_version // 10_000:
        return []
    command = [binaries.program("pg_waldump"), "--stats=record", "-p", f"{folder[0]}/pg_wal", "-s", start, "-e", end]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return []
    lines = [match.groups() for line in said.stdout.splitlines() if (match := _LINE.match(line))]
    return [Record(kind, int(count), int(size), int(images)) for kind, count, size, images in lines]
