"""Databases as another build would have left them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psycopg


def note_another_text(connection: psycopg.Connection) -> None:
    """As if another build of the same version had migrated."""
    connection.execute("comment on function faultline.protocol() is 'another text'")


def has_migrated(connection: psycopg.Connection) -> bool:
    """Whether somebody has migrated since then."""
    noted = "select obj_description('faultline.protocol()'::regprocedure) <> 'another text'"
    return connection.execute(noted).fetchone() == (True,)


def pretend(connection: psycopg.Connection, version: int, *, serves_from: int) -> None:
    """As if a build of this version had migrated."""
    connection.execute(
        "create or replace function faultline.protocol(out version integer, out serves_from integer)"
        f" language sql immutable as $$ select {version}, {serves_from} $$".encode()
    )
