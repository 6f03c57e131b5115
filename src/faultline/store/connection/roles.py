"""Connect as one of the schema's roles, so that a program can do only what it needs to."""

from __future__ import annotations

import re

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core import events
from faultline.core.dsn import LiveDsn
from faultline.store.connection import connecting
from faultline.store.connection.deadline import Deadline
from faultline.store.translation import translated

#: What poolers say about options that they do not pass on. Before a session exists libpq passes on no error code.
_NO_OPTIONS = re.compile("startup parameter|command-line options", re.IGNORECASE)


async def dsn_as(dsn: str, role: str, *, statement_seconds: float) -> str:
    """A DSN whose sessions have this role and this statement timeout.

    Without it, and with a log event, if the role does not exist, the login may not take it, or a pooler accepts no options.
    Any other refusal is raised: after an error of a full server we must not go on with all rights of the login.
    """
    timeout = f"-c statement_timeout={round(statement_seconds * 1000)}"
    for options in (f"{timeout} -c role={role}", timeout, ""):
        chosen = _with_options(dsn, options)
        with translated(dsn):
            try:
                connection = await _connect(chosen)
            except psycopg.OperationalError as error:
                if options and _NO_OPTIONS.search(str(error)):
                    continue
                if role in options and not await _may_take(dsn, role):
                    continue
                raise
        await connection.close()
        if role not in options:
            events.emit("role_not_taken", role=role, limited=bool(options))
        return chosen
    raise AssertionError("the last try either connects or raises")


async def _may_take(dsn: str, role: str) -> bool:
    """Try it in a session, where errors have a code."""
    async with await _connect(dsn) as connection:
        try:
            await connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue):
            return False
    return True


async def _connect(dsn: str) -> psycopg.AsyncConnection:
    with connecting.reading_dsn():
        return await psycopg.AsyncConnection.connect(dsn, **connecting.options(dsn, Deadline()))


def assumed(dsn: str, role: str, *, statement_seconds: float) -> str:
    """The DSN that `dsn_as` tries first, for when no server can be asked."""
    return _with_options(dsn, f"-c statement_timeout={round(statement_seconds * 1000)} -c role={role}")


def _with_options(dsn: str, options: str) -> str:
    if isinstance(dsn, LiveDsn) and options:
        return LiveDsn(lambda: _with_options(dsn.current(), options))
    own = str(conninfo_to_dict(dsn).get("options") or "")
    return make_conninfo(dsn, options=f"{own} {options}".strip()) if options else dsn
