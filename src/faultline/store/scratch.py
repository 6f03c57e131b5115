"""Create a temporary database and drop it afterwards. The database in the DSN stays untouched."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from faultline.store.install import migrate
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def database(dsn: str, *, migrated: bool = True) -> Iterator[str]:
    """Create a database on the same server. Yields its DSN."""
    name = f"faultline_scratch_{secrets.token_hex(6)}"
    scratch_dsn = make_conninfo(dsn, dbname=name)
    with translated(dsn):
        admin = psycopg.connect(dsn, autocommit=True)
    with admin as connection:
        with translated(dsn):
            connection.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
        try:
            if migrated:
                with psycopg.connect(scratch_dsn, autocommit=True) as fresh:
                    migrate.migrate(fresh)
            yield scratch_dsn
        finally:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
