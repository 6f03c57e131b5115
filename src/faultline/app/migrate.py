"""Migrate a database from a program, as `faultline migrate` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.store.install import migrate as install
from faultline.store.translation import translated

if TYPE_CHECKING:
    from collections.abc import Callable


def migrate(dsn: str | Callable[[], str] | None = None, *, wait_seconds: float = install.WAIT_SECONDS) -> list[str]:
    """Migrate the database to this build's schema. Returns what was applied: nothing if it was up to date.

    Safe to run twice, from several machines, and while workers run. The login must own the schema, or be allowed to make it.

    :param dsn: As for `Faultline`.
    :param wait_seconds: How many seconds to wait for the locks it needs. Then it raises `MigrationBlocked`.
    """
    with Faultline(dsn) as app, app.database.connect() as connection, translated(app.dsn):
        return install.migrate(connection, wait_seconds=wait_seconds)
