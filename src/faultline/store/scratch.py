"""Create a temporary database and drop it afterwards. The database in the DSN stays untouched."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.store.connection.connecting import reading_dsn
from faultline.store.install import migrate
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def database(dsn: str, *, migrated: bool = True, template: str | None = None) -> Iterator[str]:
    """Create a database on the same server. Yields its DSN.

    With `template`, the DSN of another one that nobody uses, it is a copy of that: it takes a tenth of a migration's time.
    """
    name = f"faultline_scratch_{secrets.token_hex(6)}"
    scratch_dsn = make_conninfo(dsn, dbname=name)
    copied = "template0" if template is None else str(conninfo_to_dict(template)["dbname"])
    # By copying files: the tables are small, and the usual way writes all of them to the log.
    how = sql.SQL("create database {} template {} strategy file_copy")
    with translated(dsn), reading_dsn():
        admin = psycopg.connect(dsn, autocommit=True)
    with admin as connection:
        with translated(dsn):
            connection.execute(how.format(sql.Identifier(name), sql.Identifier(copied)))
        try:
            if migrated and template is None:
                with psycopg.connect(scratch_dsn, autocommit=True) as fresh:
                    migrate.migrate(fresh)
            yield scratch_dsn
        finally:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
