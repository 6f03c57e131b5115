"""Which database, and how many connections. It is always named by somebody: a forgotten variable must be an error, not a
queue on a scratch disk.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Queues of a worker that claim in the same moment; further ones wait for a connection, a millisecond or two. With one for
#: each queue, a worker of a hundred would take all that a server has.
CLAIMS_AT_ONCE = 16


def choose_dsn(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Take the DSN that was given, else FAULTLINE_DSN, else DATABASE_URL, else raise with the choices."""
    variables = os.environ if environ is None else environ
    dsn = given or variables.get("FAULTLINE_DSN") or variables.get("DATABASE_URL")
    if dsn:
        return dsn
    raise ConfigError(
        "no database was named. Pass a DSN (Faultline('postgresql://user@host/db')), set FAULTLINE_DSN or DATABASE_URL, "
        "or choose a private PostgreSQL in this folder with FAULTLINE_DSN=embedded:"
    )


def without_password(dsn: str) -> str:
    """Show a DSN to people and logs."""
    hidden = re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", dsn)
    return re.sub(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1***", hidden, flags=re.IGNORECASE)
