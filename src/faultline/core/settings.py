"""Which database, how many connections, how long to wait. The database has no default: a forgotten variable must be an
error, not a queue on a scratch disk.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.core.bounds import CLAIMS_AT_ONCE, JOB_CONNECTIONS_MAX, TIMEOUT_SECONDS
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Connections:
    """How many connections a worker process may have open at once, by what they are for. Most are opened when needed."""

    #: Claims, completions, upkeep. No task ever gets hold of one.
    engine: int
    #: For what jobs do: `job.transaction()`, steps, progress.
    jobs: int

    @classmethod
    def of(cls, queues: int, slots: int, jobs_max: int | None = None) -> Connections:
        """For a worker of so many queues, which runs so many jobs at once."""
        # With one more than claim at once: whatever takes long, there is one left for what is quick. A worker with a single
        # slot does one thing after the other: a hundred such workers would otherwise take twice as many.
        engine = 1 if slots == 1 else min(queues, CLAIMS_AT_ONCE) + 1
        jobs = JOB_CONNECTIONS_MAX if jobs_max is None else whole("job_connections_max", jobs_max)
        return cls(engine, min(slots, jobs))

    @property
    def most(self) -> int:
        """With the heartbeat's, the listener's and the companion's."""
        return self.engine + self.jobs + 3


def whole(what: str, given: object, least: int = 1) -> int:
    """A number of things. True is one for Python, and a mistake for us."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= least:
        return given
    raise ConfigError(f"{what} is {given!r}; it must be a whole number of at least {least}")


def check_limits(grace_seconds: object, silence_seconds: object, abandoned_threads_max: object) -> None:
    """What a worker is told of its end. A mistake must not show when it stops, or kill it at the first busy moment."""
    _seconds("grace_seconds", grace_seconds, "0 or more seconds")
    _seconds("silence_seconds", silence_seconds, "more than 0 seconds, or math.inf for no limit", above_zero=True)
    whole("abandoned_threads_max", abandoned_threads_max, least=0)


def _seconds(what: str, given: object, allowed: str, *, above_zero: bool = False) -> None:
    # A NaN is neither below 0 nor above it.
    if not isinstance(given, int | float) or isinstance(given, bool) or not given >= 0 or (above_zero and given == 0):
        raise ConfigError(f"{what} is {given!r}; it must be {allowed}")


def in_file(folder: Path) -> dict[str, Any]:
    """What is set in `faultline.toml` of this folder, or else under `[tool.faultline]` of its `pyproject.toml`: `dsn`,
    `timeout`, and a table for each command with its options. The environment counts more, and the command line most.
    """
    import tomllib  # noqa: PLC0415 - late: most folders have no such file

    for name, tables in (("faultline.toml", ()), ("pyproject.toml", ("tool", "faultline"))):
        try:
            text = (folder / name).read_text()
        except (FileNotFoundError, PermissionError, UnicodeDecodeError):
            continue
        if tables and "tool.faultline" not in text:
            continue
        try:
            found: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{folder / name} is not valid TOML: {error}") from error
        for table in tables:
            found = found.get(table, {})
        return found
    return {}


def choose_dsn(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Take the DSN that was given, else FAULTLINE_DSN, else DATABASE_URL, else raise with the choices."""
    variables = os.environ if environ is None else environ
    dsn = given or variables.get("FAULTLINE_DSN") or variables.get("DATABASE_URL")
    if dsn:
        return dsn
    raise ConfigError(
        "no database is configured: pass --dsn, set FAULTLINE_DSN or DATABASE_URL, or in a program write "
        "Faultline('postgresql://user@host/db'). FAULTLINE_DSN=embedded: uses a private PostgreSQL in this folder"
    )


def choose_timeout(given: float | None = None, environ: Mapping[str, str] | None = None) -> float | None:
    """Take the seconds that were given, else FAULTLINE_TIMEOUT, else the default. None as the answer: no limit."""
    variables = os.environ if environ is None else environ
    asked = given if given is not None else variables.get("FAULTLINE_TIMEOUT") or TIMEOUT_SECONDS
    try:
        seconds = float(asked)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ConfigError(f"the timeout is {asked!r}; it must be a number of seconds greater than 0, or inf for no limit")
    return None if math.isinf(seconds) else seconds


def without_password(dsn: str) -> str:
    """Show a DSN to people and logs."""
    # Up to the last @: a password with one of its own would otherwise be shown in part.
    hidden = re.sub(r"(:/*[^:/@\s]*):.*@", r"\1:***@", dsn, flags=re.DOTALL)
    return re.sub(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)+)", r"\1***", hidden, flags=re.IGNORECASE)
