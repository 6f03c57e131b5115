"""Connect as one of the schema's roles, so that a program can do no more than it is meant to."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core import events
from faultline.store import connecting
from faultline.store.deadline import Deadline
from faultline.store.translation import translated


async def dsn_as(dsn: str, role: str, *, statement_seconds: float) -> str:
    """A DSN whose sessions have this role, and give up on statements that take longer.

    Where there is no such role, the login may not take it, or a pooler knows no options: one without, and a word in the log.
    """
    timeout = f"-c statement_timeout={round(statement_seconds * 1000)}"
    for options in (f"{timeout} -c role={role}", timeout, ""):
        chosen = _with_options(dsn, options)
        try:
            connection = await psycopg.AsyncConnection.connect(chosen, **connecting.options(dsn, Deadline()))
        except psycopg.OperationalError:
            if options:
                continue
            with translated(dsn):
                raise
        await connection.close()
        if role not in options:
            events.emit("role_not_taken", role=role, limited=bool(options))
        return chosen
    raise AssertionError("the last try either connects or raises")


def assumed(dsn: str, role: str, *, statement_seconds: float) -> str:
    """The DSN that `dsn_as` chooses first, for when nobody can be asked."""
    return _with_options(dsn, f"-c statement_timeout={round(statement_seconds * 1000)} -c role={role}")


def _with_options(dsn: str, options: str) -> str:
    own = str(conninfo_to_dict(dsn).get("options") or "")
    return make_conninfo(dsn, options=f"{own} {options}".strip()) if options else dsn
